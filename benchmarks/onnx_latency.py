#!/usr/bin/env python
"""Latency of ONNX files on the CPU: onnxruntime in float32 and INT8 against eager PyTorch.

    python benchmarks/onnx_latency.py  # ten minutes

One image from an array to a prediction: PyTorch with the toolbox's own preprocessing and
post-processing, a file with `lape_mm.runtime`. Each ratio with a limit is measured by its two rows
alone, in turns. Weights are random; those of the detectors' classes are enlarged, so that something
is detected.
"""
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import measure
import numpy as np
import onnxruntime
import torch
from measure import ROOT
from mmengine.registry import MODELS, init_default_scope

from lape_mm.export.onnx import INT8, export_onnx, quantise
from lape_mm.runs.config import load_config
from lape_mm.runs.export import preparation
from lape_mm.runtime import Model

CONFIGS = {
    'DeiT-Ti, 224 px': ('deit/deit-tiny-mpvg_4xb256-300e_in1k.py', 224),
    'Mask R-CNN, 128 px': ('quickstart/mask_rcnn.py', 128),
    'Mask R-CNN with ViT-Adapter-Ti, 512 px':
        ('mask_rcnn/mask-rcnn_vit-adapter-tiny-mpvg_fpn_4xb2-ms-3x_coco.py', 512)}
EAGER, BF16, FLOAT = 'PyTorch', 'PyTorch, bf16', 'onnxruntime'
BASES = {FLOAT: EAGER, BF16: EAGER, **{f'{FLOAT}, {how} INT8': FLOAT for how in INT8}}


def build(name: str, threads: int) -> tuple[dict[str, Callable], dict[str, int]]:
    """What to time for a model of `CONFIGS`, and the files' sizes in bytes."""
    path, size = CONFIGS[name]
    cfg = load_config(str(ROOT / 'configs' / path))
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    cfg.model.backbone.init_cfg = None
    model = MODELS.build(cfg.model).eval()
    detector = cfg.default_scope == 'mmdet'
    if detector:
        with torch.no_grad():
            model.roi_head.bbox_head.fc_cls.weight *= 100
    images = [torch.randint(0, 256, (3, size, size)) for _ in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        export_onnx(model, images, Path(folder, 'm.onnx'), notes=preparation(cfg)[1])
        content = Path(folder, 'm.onnx').read_bytes()
    files = {FLOAT: content,
             **{f'{FLOAT}, {how} INT8': quantise(content, how, images) for how in INT8}}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    pixels = images[0].flip(0).permute(1, 2, 0).numpy().astype(np.uint8)
    works: dict[str, Callable] = {
        row: partial(Model(file, options), pixels) for row, file in files.items()}
    image = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)[::-1]))

    @torch.no_grad()
    def eager() -> object:
        samples = []
        if detector:
            from mmdet.structures import DetDataSample
            samples = [DetDataSample(metainfo=dict(
                img_shape=(size, size), ori_shape=(size, size), scale_factor=(1., 1.)))]
        return model.test_step(dict(inputs=[image], **(dict(data_samples=samples) if detector
                                                       else {})))

    def bf16() -> object:
        with torch.autocast('cpu', torch.bfloat16):
            return eager()

    works[EAGER] = eager
    if not detector:  # mmdet's post-processing is float32
        works[BF16] = bf16
    return works, {row: len(file) for row, file in files.items()}


def main() -> int:
    """Measures, prints and writes; 1 if a figure misses its limit."""
    parser = measure.parser(__doc__, rounds=3)
    parser.add_argument('--models', nargs='+', choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument('--pair-seconds', type=float, default=60,
                        help='for each ratio with a limit')
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    measured, sizes, bars = {}, {}, []
    for name in args.models:
        works, sizes[name] = build(name, args.threads)
        measured[f'{name}, s'] = measure.time_all(works, args.rounds)
        pairs = [(FLOAT, EAGER, .8)]
        if 'DeiT' in name:
            pairs += [(f'{FLOAT}, {how} INT8', FLOAT, .7) for how in INT8]
        bars += [measure.time_pair(f'{name}: {row} / {base}', works, row, base, limit,
                                   args.pair_seconds) for row, base, limit in pairs]
    return measure.write(args, 'onnx_latency', dict(
        claim='ONNX files, one image', measured=measured, bases=BASES, bars=bars,
        file_bytes=sizes))


if __name__ == '__main__':
    sys.exit(main())
