"""Predictions in a file, for each toolbox what fits into one."""
from __future__ import annotations

import torch
from mmengine.evaluator import BaseMetric, DumpResults

from .errors import RunError


class DumpLabelMaps(DumpResults):
    """mmengine's DumpResults for semantic segmentation: label maps without logits.

    The logits of an ADE20K image alone take some 200 MB. An entry is a dict of ``img_path`` and
    ``pred_sem_seg``, an integer tensor (H, W).
    """

    def process(self, data_batch, predictions) -> None:
        for prediction in predictions:
            labels = prediction['pred_sem_seg']['data'].squeeze(0).to('cpu')
            small = torch.uint8 if int(labels.max()) < 256 else torch.int32
            self.results.append(
                dict(img_path=prediction.get('img_path'), pred_sem_seg=labels.to(small)))


def dump_metric(scope: str, path: str) -> BaseMetric:
    """The evaluator entry that writes the predictions of a toolbox to a pickle file.

    Raises:
        RunError: the file's name does not end as a pickle's.
    """
    if not path.endswith(('.pkl', '.pickle')):
        raise RunError(f'--out {path}: expected a name that ends with .pkl')
    if scope == 'mmdet':
        from mmdet.evaluation import DumpDetResults  # masks as run lengths
        return DumpDetResults(out_file_path=path)
    return (DumpLabelMaps if scope == 'mmseg' else DumpResults)(out_file_path=path)
