"""Exports ONNX files, only if onnxruntime reproduces PyTorch's outputs on real images."""
from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.ops import box_iou

from lape_mm.backbones import fold
from lape_mm.requirements import require
from lape_mm.wording import first_line

from .detector import translations
from .graph import Graph
from .int8 import quantise

NEEDED = ('onnx', 'onnxruntime', 'onnxscript')
OPSET = 18  # lower ones cannot express padding; onnxruntime has no RoiAlign above 21 on the CPU
BATCHES = (1, 3)
TOLERANCE = 1e-4
# of detections: their scores, the overlap of their boxes, and the share that may have no partner,
# since scores or overlaps that are nearly equal may come in either order
SCORE_TOLERANCE, OVERLAP, UNMATCHED = 1e-3, .99, .01


class ExportError(ValueError):
    """The model cannot be exported, or its file computes something else."""


def export_onnx(model: nn.Module, images: Sequence[Tensor], out: str | Path, *,
                turned: bool = False, int8: str | None = None, notes: Mapping | None = None) \
        -> float:
    """Folds a model, exports its `Graph`, compares it with the unfolded model, and writes it.

    The file takes ``image``, see `Graph`, with any batch and one size. Its metadata has ``task``,
    ``img_size``, ``swaps_channels``, ``mean``, ``std``, ``folded``, ``int8`` and the notes, as
    JSON.

    Args:
        model: of mmpretrain, mmseg or mmdet around a backbone of this package; it is set to
            evaluation mode and not changed otherwise.
        images: raw images to compare on, (channels, H, W) of one size, as the config's pipeline
            reads them; three are compared, fewer are repeated. int8='static' calibrates on all.
        out: file to write.
        turned: see `Graph`.
        int8: quantise the compared file: one of `INT8`, see `quantise`.
        notes: more metadata, such as the classes.

    Returns:
        the largest difference between onnxruntime and PyTorch, relative to the output's scale;
        for a detector the largest difference of two scores. Both before quantisation.

    Raises:
        ImportError: a package is missing; says how to install it.
        ExportError: the model cannot be exported, or the outputs differ; nothing is written.
    """
    require(*NEEDED)
    size = tuple(images[0].shape[-2:])
    try:
        plain = Graph(model.eval(), size, turned=turned).eval()
        folded = Graph(fold(model, size), size, turned=turned).eval()
    except ValueError as error:
        raise ExportError(str(error)) from error
    batch = torch.stack([images[index % len(images)] for index in range(max(BATCHES))]).float()
    content = trace(folded, batch[:2], {
        'task': folded.task, 'img_size': size, 'swaps_channels': folded.swaps_channels,
        **{name: None if values is None else values.flatten().tolist()
           for name, values in (('mean', folded.mean), ('std', folded.std))},
        'folded': True, 'int8': int8, **(notes or {})})
    difference = (compare if plain.detector is None else compare_detections)(content, plain, batch)
    tolerance = TOLERANCE if plain.detector is None else SCORE_TOLERANCE
    if not difference <= tolerance:  # nan included
        raise ExportError(f'onnxruntime and PyTorch differ by {difference:.1e} of the output\'s '
                          f'scale, more than {tolerance:.0e}: nothing was written')
    write(quantise(content, int8, images) if int8 else content, Path(out))
    return difference


@torch.no_grad()
def trace(graph: Graph, images: Tensor, notes: Mapping) -> bytes:
    """The content of the file, for batches of images of this size, (2, channels, H, W).

    Raises:
        ExportError: PyTorch's exporter cannot express the model.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            program = torch.onnx.export(
                graph, (images,), dynamo=True, opset_version=OPSET, verbose=False,
                dynamic_shapes=({0: torch.export.Dim('batch')},),
                input_names=['image'], output_names=graph.outputs,
                custom_translation_table=translations())
        assert program is not None  # for mypy; dynamo returns a program
    except Exception as error:  # the exporter can raise anything
        cause = error.__cause__ or error
        raise ExportError(f'PyTorch cannot export {type(graph.model).__name__} to ONNX: '
                          f'{first_line(cause, kind=True)}') from error
    proto = program.model_proto
    for key, value in notes.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, json.dumps(value)
    return proto.SerializeToString()


def run_onnx(content: bytes, images: Tensor) -> list[Tensor]:
    """Outputs of onnxruntime on the CPU."""
    import onnxruntime
    session = onnxruntime.InferenceSession(content, providers=['CPUExecutionProvider'])
    return [torch.from_numpy(output) for output in session.run(None, {'image': images.numpy()})]


@torch.no_grad()
def compare(content: bytes, graph: nn.Module, images: Tensor) -> float:
    """The largest difference between a file and a graph, relative to each output's scale.

    The first images, (B, channels, H, W), are run in batches of `BATCHES`. Returns inf if shapes
    differ or an output is not finite.
    """
    worst = 0.
    for batch in BATCHES:
        ours, theirs = run_onnx(content, images[:batch]), graph(images[:batch])
        if [x.shape for x in ours] != [x.shape for x in theirs]:
            return float('inf')
        for a, b in zip(ours, theirs):
            gap = ((a - b).abs().max() / b.abs().max().clamp(min=1e-12)).item()
            worst = max(worst, gap if math.isfinite(gap) else float('inf'))
    return worst


@torch.no_grad()
def compare_detections(content: bytes, graph: Graph, images: Tensor) -> float:
    """The largest difference between the scores of a file's and of mmdet's detections.

    As `compare`; ``graph`` is of the unfolded model.

    Raises:
        ExportError: labels, scores, boxes or masks differ by more than the tolerances above.
    """
    from lape_mm.runtime import paste
    assert graph.detector is not None
    cfg, size = graph.detector.roi.test_cfg, graph.img_size
    total = lost = differ = area = 0
    worst = 0.
    for batch in BATCHES:
        maps = graph.model.extract_feat(graph.normalise(images[:batch]))
        for theirs, ours in zip(graph.detector.reference(maps),
                                zip(*run_onnx(content, images[:batch]))):
            boxes, scores, labels, *masks = (part[ours[1] > 0] for part in ours)
            gap = (theirs.scores[:, None] - scores).abs()
            same = (gap < SCORE_TOLERANCE) & (theirs.labels[:, None] == labels) & (
                (box_iou(theirs.bboxes, boxes) > OVERLAP)
                | (torch.cdist(theirs.bboxes, boxes, p=float('inf')) < .01))  # no area
            # at the cut the last detection may be another one
            cut = SCORE_TOLERANCE + max(cfg.score_thr, *(
                found.min().item() for found in (theirs.scores, scores)
                if len(found) == cfg.max_per_img), 0.)
            total += len(theirs.scores)
            lost += int((~same.any(1) & (theirs.scores > cut)).sum()
                        + (~same.any(0) & (scores > cut)).sum())
            worst = max([worst, *gap[same].tolist()])
            # mmdet pastes the mask of an empty box over whole rows
            rows, pairs = (same & (boxes[:, 2:] > boxes[:, :2]).all(1)).nonzero(as_tuple=True)
            if masks and len(rows):
                mine = torch.from_numpy(paste(masks[0][pairs].numpy(), boxes[pairs].numpy(), size,
                                              cfg.mask_thr_binary))
                differ += int((mine ^ theirs.masks[rows]).sum())
                area += int((mine | theirs.masks[rows]).sum())
    if not total:
        raise ExportError('PyTorch detects nothing in the images of the comparison: give others')
    if lost > UNMATCHED * total or differ > UNMATCHED * area:
        raise ExportError(f'{lost} of {total} detections of onnxruntime and PyTorch have no '
                          f'partner, and {differ} of {area} pixels of the masks differ: '
                          'nothing was written')
    return worst


def write(content: bytes, out: Path) -> None:
    """Writes a file completely, or leaves what was there; ExportError if it cannot be written."""
    part = out.with_name(f'.{out.name}.part')
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(out)
    except OSError as error:
        with suppress(OSError):  # there may be nothing to remove
            part.unlink()
        raise ExportError(f'{out}: cannot be written ({error.strerror})') from error
