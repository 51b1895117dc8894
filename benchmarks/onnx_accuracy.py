#!/usr/bin/env python
"""Top-1 or mIoU of an ONNX file on a drawn data set, by onnxruntime alone: without torch.

    python benchmarks/onnx_accuracy.py upernet.onnx data/scenes/ade
    python benchmarks/onnx_accuracy.py deit.onnx data/scenes/imagenet

The folder has ADE20K's layout (``{images,annotations}/validation``, label 0 is ignored) or
ImageNet's (``val/<class>/``). Prints a line of JSON; the figure is that of tools/test.py.
"""
import argparse
import json
import sys
from pathlib import Path

import cv2
import numpy as np
import onnxruntime

BATCH = 8


def read(path: Path, size: tuple[int, int]) -> np.ndarray:
    """(3, H, W), float32, 0..255, in OpenCV's BGR, at the file's size."""
    image = cv2.imread(str(path))
    if image.shape[:2] != size:
        image = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR)
    return image.transpose(2, 0, 1).astype(np.float32)


def outputs(session: onnxruntime.InferenceSession, paths: list[Path], size: tuple[int, int]):
    """Yields each path with its logits, without the batch axis."""
    for start in range(0, len(paths), BATCH):
        part = paths[start:start + BATCH]
        output, = session.run(None, {'image': np.stack([read(path, size) for path in part])})
        yield from zip(part, output)


def top1(session: onnxruntime.InferenceSession, root: Path, size: tuple[int, int]) -> dict:
    """The share of images whose largest logit is their folder's, folders sorted by name."""
    folders = sorted(path.name for path in (root / 'val').iterdir() if path.is_dir())
    paths = sorted(path for path in (root / 'val').rglob('*') if path.is_file())
    right = sum(folders[int(output.argmax())] == path.parent.name
                for path, output in outputs(session, paths, size))
    return dict(metric='top1', value=round(100 * right / len(paths), 2), images=len(paths))


def mean_iou(session: onnxruntime.InferenceSession, root: Path, size: tuple[int, int]) -> dict:
    """mIoU over the pixels whose label is not 0, at the label maps' size, as mmseg counts it."""
    paths = sorted(path for path in (root / 'images/validation').rglob('*') if path.is_file())
    hits = total = 0
    for path, output in outputs(session, paths, size):
        labels = cv2.imread(str(root / 'annotations/validation' / f'{path.stem}.png'),
                            cv2.IMREAD_GRAYSCALE)
        if output.shape[1:] != labels.shape:
            output = np.stack([cv2.resize(plane, labels.shape[::-1],
                                          interpolation=cv2.INTER_LINEAR) for plane in output])
        classes, known = len(output), labels > 0
        truth, found = labels[known].astype(int) - 1, output.argmax(axis=0)[known]
        hits = hits + np.bincount(truth[truth == found], minlength=classes)
        total = total + np.bincount(truth, minlength=classes) + np.bincount(found,
                                                                            minlength=classes)
    union = total - hits
    iou = hits[union > 0] / union[union > 0]
    return dict(metric='mIoU', value=round(100 * float(iou.mean()), 2), images=len(paths))


def main(argv: list[str] | None = None) -> int:
    """The command line; 2 for a file that is neither a classifier nor a segmenter."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('file', help='ONNX file of tools/export_onnx.py')
    parser.add_argument('data', type=Path, help='folder of the data set')
    parser.add_argument('--threads', type=int, default=1)
    args = parser.parse_args(argv)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    session = onnxruntime.InferenceSession(args.file, options, providers=['CPUExecutionProvider'])
    notes = {key: json.loads(value)
             for key, value in session.get_modelmeta().custom_metadata_map.items()}
    measure = dict(classifier=top1, segmenter=mean_iou).get(notes.get('task'))
    if measure is None:
        print(f'error: {args.file} is no classifier or segmenter of tools/export_onnx.py',
              file=sys.stderr)
        return 2
    part = args.data / ('images/validation' if measure is mean_iou else 'val')
    if not part.is_dir():
        print(f'error: there is no folder {part}', file=sys.stderr)
        return 2
    print(json.dumps({**measure(session, args.data, tuple(notes['img_size'])),
                      'config': notes['config'], 'joining': notes['joining']}))
    return 0


if __name__ == '__main__':
    sys.exit(main())
