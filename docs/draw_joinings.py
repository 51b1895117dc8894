#!/usr/bin/env python
"""Draws docs/joinings.svg: where position embedding enters, read off each joining's own plan."""
from pathlib import Path

import matplotlib
import torch

from lape_mm.position import PRESETS

matplotlib.use('svg')
from matplotlib import pyplot as plt  # noqa: E402

SHOWN = {'default': 'default (ViT, DeiT)', 'lape': 'LaPE', 'pvg': 'PVG', 'mpvg': 'MPVG'}
DEPTH = 4
TOKENS, PE = '#4c72b0', '#dd8452'


def box(axis, x, y, text, color, *, filled=True):
    """A labelled box centred at (x, y)."""
    axis.text(x, y, text, ha='center', va='center', fontsize=8,
              color='white' if filled else color,
              bbox=dict(boxstyle='round,pad=0.35', facecolor=color if filled else 'white',
                        edgecolor=color))


def arrow(axis, start, end, color):
    """An arrow from start to end."""
    axis.annotate('', xy=end, xytext=start,
                  arrowprops=dict(arrowstyle='-|>', color=color, lw=1.2, shrinkA=9, shrinkB=9))


def draw(axis, name):
    """One joining: tokens go up on the left, PE goes up on the right and crosses over."""
    joining = PRESETS[name]
    *norms, last = (joining.pe_norm(layer, dim=8, eps=1e-6) for layer in (*range(DEPTH), None))
    plan = joining.plan([torch.randn(1, 4, 8)], norms, last)
    labels = ['layer 0', 'layer 1', '...', 'layer L-1']
    box(axis, 0, 0, 'patches' + (' + class token' if joining.class_token else ''), TOKENS,
        filled=False)
    box(axis, 2.6, 0, 'pos', PE)
    heights = [1.2 * (layer + 1) for layer in range(DEPTH)]
    previous, below = (2.6, 0), (0, 0)
    for layer, y in enumerate(heights):
        box(axis, 0, y, labels[layer], TOKENS)
        arrow(axis, below, (0, y), TOKENS)
        if plan.residual[layer] is not None:
            arrow(axis, (2.6, 0), (0, y - .6), PE)
            axis.text(0, y - .6, '+', ha='center', va='center', color=PE, fontsize=11,
                      bbox=dict(boxstyle='circle,pad=.1', facecolor='white', edgecolor=PE))
        if plan.pre_attn[layer] is not None:
            box(axis, 2.6, y, "LN'", PE)
            arrow(axis, previous, (2.6, y), PE)
            arrow(axis, (2.45, y), (.45, y), PE)
            previous = (2.6, y)
        below = (0, y)
    top = heights[-1] + 1.2
    box(axis, 0, top, 'last LN', TOKENS)
    arrow(axis, below, (0, top), TOKENS)
    if plan.post_norm is not None:
        box(axis, 2.6, top, "LN'(pos)", PE)
        arrow(axis, (2.2, top), (.4, top), PE)
    box(axis, 0, top + 1.2, 'class token' if joining.class_token else 'mean of tokens', TOKENS,
        filled=False)
    arrow(axis, (0, top), (0, top + 1.2), TOKENS)
    axis.set_title(SHOWN[name], fontsize=10)
    axis.set_xlim(-1.6, 3.6)
    axis.set_ylim(-.6, top + 1.8)
    axis.axis('off')


def main() -> None:
    """Writes the drawing beside this file."""
    plt.rcParams['svg.hashsalt'] = 'lape_mm'  # equal runs, equal bytes
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(11, 4.6))
    for axis, name in zip(axes, SHOWN):
        draw(axis, name)
    figure.tight_layout()
    figure.savefig(Path(__file__).with_name('joinings.svg'), metadata={'Date': None},
                   facecolor='white')


if __name__ == '__main__':
    main()
