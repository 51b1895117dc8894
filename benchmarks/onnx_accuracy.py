#!/usr/bin/env python
"""Top-1, mIoU or box and mask AP of an ONNX file by lape_mm.runtime: without torch.

    python benchmarks/onnx_accuracy.py mask_rcnn.onnx data/scenes/coco
    python benchmarks/onnx_accuracy.py upernet.onnx data/scenes/ade
    python benchmarks/onnx_accuracy.py deit.onnx data/scenes/imagenet

The folder has COCO's layout (``annotations/instances_val2017.json``, needs pycocotools), ADE20K's
(``{images,annotations}/validation``, label 0 is ignored) or ImageNet's (``val/<class>/``). Prints
a line of JSON; the figures are those of tools/test.py.
"""
import argparse
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

from lape_mm.runtime import Model

NEEDED = {'classifier': 'val', 'segmenter': 'images/validation',
          'detector': 'annotations/instances_val2017.json'}


def top1(model: Model, root: Path) -> dict:
    """The share of images whose first class is their folder's, folders sorted by name."""
    folders = sorted(path.name for path in (root / 'val').iterdir() if path.is_dir())
    paths = sorted(path for path in (root / 'val').rglob('*') if path.is_file())
    right = sum(folders[model(path).labels[0]] == path.parent.name for path in paths)
    return dict(top1=round(100 * right / len(paths), 2), images=len(paths))


def mean_iou(model: Model, root: Path) -> dict:
    """mIoU over the pixels whose label is not 0, at the label maps' size, as mmseg counts it."""
    paths = sorted(path for path in (root / 'images/validation').rglob('*') if path.is_file())
    hits = total = 0
    for path in paths:
        labels = np.asarray(Image.open(root / 'annotations/validation' / f'{path.stem}.png'))
        known = labels > 0
        truth, found = labels[known].astype(int) - 1, model(path).label_map[known]
        hits = hits + np.bincount(truth[truth == found], minlength=256)
        total = total + np.bincount(truth, minlength=256) + np.bincount(found, minlength=256)
    union = total - hits
    iou = hits[union > 0] / union[union > 0]
    return dict(mIoU=round(100 * float(iou.mean()), 2), images=len(paths))


def average_precision(model: Model, root: Path) -> dict:
    """Box and mask AP as COCO counts them."""
    from pycocotools import mask as coco_mask
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval
    rows = []
    with redirect_stdout(sys.stderr):
        coco = COCO(str(root / NEEDED['detector']))
        ids = {entry['name']: entry['id'] for entry in coco.dataset['categories']}
        for index, image in coco.imgs.items():
            found = model(root / 'val2017' / image['file_name'])
            masks = [None] * len(found.boxes) if found.masks is None else found.masks
            for label, score, box, mask in zip(found.labels, found.scores, found.boxes, masks):
                rows.append(dict(
                    image_id=index, category_id=ids[found.names[label]], score=float(score),
                    bbox=[*map(float, (*box[:2], *(box[2:] - box[:2])))]))
                if mask is not None:
                    rows[-1]['segmentation'] = coco_mask.encode(np.asfortranarray(mask, np.uint8))
        if not rows:
            return dict(bbox_AP=0., images=len(coco.imgs))
        made = {}
        for kind in ('bbox', 'segm') if 'segmentation' in rows[0] else ('bbox',):
            # pycocotools takes areas from the box where there is one
            given = [{key: value for key, value in row.items() if kind == 'bbox' or key != 'bbox'}
                     for row in rows]
            run = COCOeval(coco, coco.loadRes(given), kind)
            run.evaluate()
            run.accumulate()
            run.summarize()
            made[f'{kind}_AP'] = round(100 * float(run.stats[0]), 2)
    return dict(made, images=len(coco.imgs))


def main(argv: list[str] | None = None) -> int:
    """The command line; 2 for another file, or a folder of another task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('file', help='ONNX file of tools/export_onnx.py')
    parser.add_argument('data', type=Path, help='folder of the data set')
    parser.add_argument('--threads', type=int, default=1)
    args = parser.parse_args(argv)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    try:
        model = Model(args.file, options)
    except ValueError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    if not (args.data / NEEDED[model.task]).exists():
        print(f'error: there is no {args.data / NEEDED[model.task]}', file=sys.stderr)
        return 2
    measure = dict(classifier=top1, segmenter=mean_iou, detector=average_precision)[model.task]
    print(json.dumps({**measure(model, args.data), 'int8': model.notes['int8'],
                      'config': model.notes.get('config'), 'joining': model.notes.get('joining')}))
    return 0


if __name__ == '__main__':
    sys.exit(main())
