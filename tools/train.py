#!/usr/bin/env python
"""Train with a config of mmpretrain, mmdet or mmseg.

    python tools/train.py configs/quickstart/mask_rcnn.py --joining mpvg
    python tools/train.py mask_rcnn --data photos --epochs 24 --img-size 640
    python tools/train.py mmdet::atss/atss_r50_fpn_1x_coco.py --backbone vit_adapter_tiny
"""
import argparse
import sys

from lape_mm.runs import arguments
from lape_mm.runs.errors import exit_status


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Train a model')
    parser.add_argument('config', help='config file, or mask_rcnn, upernet, segmenter or deit, '
                        'optionally with _small or _base')
    parser.add_argument('--resume', nargs='?', const='auto', metavar='CHECKPOINT',
                        help='continue from CHECKPOINT; without a value, from the latest '
                        'checkpoint in the work folder, if there is one')
    parser.add_argument('--amp', choices=['fp16', 'bf16'], help='mixed precision')
    parser.add_argument('--auto-scale-lr', action='store_true',
                        help='scale the learning rate to the total batch size: images per process '
                        'x processes x optim_wrapper.accumulative_counts')
    parser.add_argument('--strict-data', action='store_true',
                        help='stop at the first bad sample instead of skipping it')
    arguments.add_data(parser)
    parser.add_argument('--ema', action='store_true', help='validate and test with an exponential '
                        'moving average of the weights')
    parser.add_argument('--act-checkpoint', action='store_true', help='gradient checkpointing: '
                        'saves memory, costs time')
    parser.add_argument('--write', metavar='FILE.py', help="only write the config with all options "
                        "into one file that OpenMMLab's own tools can read")
    arguments.add_common(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    def run() -> None:
        args = parse_args(argv)
        from lape_mm.runs import session
        session.train(args)

    return exit_status(run)


if __name__ == '__main__':
    sys.exit(main())
