"""ONNX files, written only where onnxruntime gives what PyTorch gives on real images."""
from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from lape_mm.backbones import fold
from lape_mm.requirements import require
from lape_mm.wording import first_line

from .graph import Graph

NEEDED = ('onnx', 'onnxruntime', 'onnxscript')
OPSETS = (18, 23)  # what PyTorch's exporter writes; below, it cannot express padding
BATCHES = (1, 3)
TOLERANCE = 1e-4


class ExportError(ValueError):
    """A model that cannot be exported, or whose file would compute something else."""


def export_onnx(model: nn.Module, images: Sequence[Tensor], out: str | Path, *,
                opset: int = OPSETS[0], turned: bool = False,
                notes: Mapping | None = None) -> float:
    """Folds a model, exports its `Graph`, compares it with the unfolded model, and writes it.

    The file's input is ``image``, see `Graph`, of any batch and one size; its metadata has
    ``task``, ``img_size``, ``joining``, ``folded`` and the notes, as JSON.

    Args:
        model: of mmpretrain, mmseg or mmdet around a backbone of this package; is left as it is,
            but for evaluation mode.
        images: for the comparison, raw as the config's pipeline begins with them, (channels, H,
            W) of one size; three of them are used, fewer are repeated.
        out: file to write.
        opset: of the file.
        turned: see `Graph`.
        notes: further metadata, such as the classes.

    Returns:
        the largest difference between onnxruntime and PyTorch, relative to the output's scale.

    Raises:
        ImportError: a package that this needs is missing; says how to install it.
        ExportError: the model cannot be exported, or the outputs differ. Nothing is written then.
    """
    require(*NEEDED)
    if not OPSETS[0] <= opset <= OPSETS[1]:
        raise ExportError(f'opset {opset}: expected {OPSETS[0]} to {OPSETS[1]}')
    size = tuple(images[0].shape[-2:])
    try:
        plain = Graph(model.eval(), size, turned=turned).eval()
        folded = Graph(fold(model, size), size, turned=turned).eval()
    except ValueError as error:
        raise ExportError(str(error)) from error
    batch = torch.stack([images[index % len(images)] for index in range(max(BATCHES))]).float()
    content = trace(folded, batch[:2], opset, {
        'task': folded.task, 'img_size': size, 'swaps_channels': folded.swaps_channels,
        'folded': True, **(notes or {})})
    difference = compare(content, plain, batch)
    if not difference <= TOLERANCE:  # nan included
        raise ExportError(f'onnxruntime and PyTorch differ by {difference:.1e} of the output\'s '
                          f'scale, more than {TOLERANCE:.0e}: nothing was written')
    write(content, Path(out))
    return difference


@torch.no_grad()
def trace(graph: Graph, images: Tensor, opset: int, notes: Mapping) -> bytes:
    """The file's content, for any batch of images of the size of these, (2, channels, H, W).

    Raises:
        ExportError: PyTorch's exporter cannot express the model.
    """
    names = graph.output_names(graph(images))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            program = torch.onnx.export(
                graph, (images,), dynamo=True, opset_version=opset, verbose=False,
                dynamic_shapes=({0: torch.export.Dim('batch')},),
                input_names=['image'], output_names=names)
        assert program is not None  # it is one with dynamo
    except Exception as error:  # whatever in the model it stumbles upon
        cause = error.__cause__ or error
        raise ExportError(f'PyTorch cannot export {type(graph.model).__name__} to ONNX: '
                          f'{first_line(cause, kind=True)}') from error
    proto = program.model_proto
    written = {entry.version for entry in proto.opset_import if entry.domain == ''}
    if written != {opset}:
        raise ExportError(f'opset {opset}: the exporter could write {max(written)} alone')
    for key, value in notes.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, json.dumps(value)
    return proto.SerializeToString()


def run_onnx(content: bytes, images: Tensor) -> list[Tensor]:
    """What onnxruntime computes on the CPU."""
    import onnxruntime
    session = onnxruntime.InferenceSession(content, providers=['CPUExecutionProvider'])
    return [torch.from_numpy(output) for output in session.run(None, {'image': images.numpy()})]


@torch.no_grad()
def compare(content: bytes, graph: nn.Module, images: Tensor) -> float:
    """The largest difference between a file and a graph, relative to each output's scale.

    Args:
        content: of the file.
        graph: what it should compute.
        images: (B, channels, H, W), of which batches of `BATCHES` are taken.

    Returns:
        the difference; inf where number or shapes of the outputs differ or anything is not finite.
    """
    worst = 0.
    for batch in BATCHES:
        ours, theirs = run_onnx(content, images[:batch]), graph(images[:batch])
        if [x.shape for x in ours] != [x.shape for x in theirs]:
            return float('inf')
        for a, b in zip(ours, theirs):
            gap = ((a - b).abs().max() / b.abs().max().clamp(min=1e-12)).item()
            worst = max(worst, gap if torch.isfinite(a).all() and torch.isfinite(b).all()
                        else float('inf'))
    return worst


def write(content: bytes, out: Path) -> None:
    """All of a file, or none of it.

    Raises:
        ExportError: it cannot be written there.
    """
    part = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=out.parent, prefix=f'.{out.name}.',
                                         delete=False) as file:
            part = file.name
            file.write(content)
        # as open() would have made it: a temporary file is for its owner alone
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part, 0o666 & ~mask)
        os.replace(part, out)
    except OSError as error:
        raise ExportError(f'{out}: cannot be written ({error.strerror})') from error
    finally:
        if part is not None and os.path.exists(part):
            os.unlink(part)
