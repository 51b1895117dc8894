"""Draws the arrays of a section, with several models side by side.

A section's ``draw`` takes ``models``, which maps labels to the section's arrays, and ``pictures``,
the recorded images as arrays (H, W, 3) in 0..1.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Models = Mapping[str, Mapping[str, np.ndarray]]
Pictures = Sequence[np.ndarray]
LAST = {'last_before': 'before\nlast LN', 'last_after': 'after\nlast LN',
        'last_with_position': 'after,\nwith PE'}


def by_layer(arrays: Mapping[str, np.ndarray], name: str) -> dict[int, np.ndarray]:
    """Layer -> array, for the arrays called ``name`` plus the number of a layer."""
    return {int(key[len(name):]): value for key, value in arrays.items()
            if key.startswith(name) and key[len(name):].isdigit()}


def panels(rows: int, titles: Sequence[str], size: float = 1.25) -> tuple[Any, np.ndarray]:
    """A figure and its axes: square panels of ``size`` inches, with a title per column."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(.7 + len(titles) * size, .45 + rows * size), layout='constrained')
    axes = figure.subplots(rows, len(titles), squeeze=False)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[], frame_on=False)
    for axis, title in zip(axes[0], titles):
        axis.set_title(title, fontsize=8)
    return figure, axes


def table(titles: Sequence[str], rows: Sequence[tuple[str, Mapping[int, np.ndarray]]],
          caption: str = '', size: float = 1.25, **options):
    """Draws labelled rows of images; returns the figure, its axes and the last image drawn."""
    figure, axes = panels(len(rows), titles, size)
    for line, (label, images) in zip(axes, rows):
        line[0].set_ylabel(label, fontsize=8)
        for column, image in images.items():
            drawn = line[column].imshow(image, interpolation='nearest', **options)
    figure.supxlabel(caption, fontsize=8)
    return figure, axes, drawn


def layer_titles(models: Models, name: str) -> list[str]:
    """Column titles, one per layer."""
    deepest = max(max(by_layer(arrays, name), default=0) for arrays in models.values())
    return [f'layer {layer}' for layer in range(deepest + 1)]


def draw_similarity(models: Models, pictures: Pictures):
    """Draws two rows per model: the whole matrices, and the maps of the middle patch."""
    titles = layer_titles(models, 'map')
    rows = []
    for label, arrays in models.items():
        rows += [(f'{label}\nall patches', by_layer(arrays, 'matrix')),
                 (f'{label}\none patch', {**by_layer(arrays, 'map'), len(titles): arrays['raw']})]
    figure, axes, drawn = table([*titles, 'raw PE'], rows, vmin=0, vmax=1, cmap='magma')
    figure.colorbar(drawn, ax=axes, shrink=.6, aspect=30, label='cosine similarity')
    return figure


def draw_heads(models: Models, name: str, signed: bool):
    """Draws one row per head and one column per layer; only signed values share a scale."""
    rows = []
    for label, arrays in models.items():
        layers = by_layer(arrays, name)
        rows += [(f'{label}\nhead {head}', {layer: values[head] for layer, values in
                                            layers.items() if head < len(values)})
                 for head in range(max(map(len, layers.values())))]
    limit = max(abs(value).max() for arrays in models.values() for value in arrays.values()) or 1
    options = dict(vmin=-limit, vmax=limit, cmap='RdBu_r') if signed else dict(vmin=0)
    caption = f'red is positive, blue negative; up to {limit:.2g}' if signed else \
        'each panel: from none (dark) to its largest share (bright)'
    return table(layer_titles(models, name), rows, caption, size=1.05, **options)[0]


def scaled(images: Mapping[int, np.ndarray]) -> tuple[dict[int, np.ndarray], float]:
    """Divides images by a common limit, their 99.5th percentile of magnitude; returns both."""
    values = [abs(image).ravel() for image in images.values()]
    limit = float(np.percentile(np.concatenate(values), 99.5)) or 1. if values else 1.
    return {column: image / limit for column, image in images.items()}, limit


def draw_heatmaps(models: Models, pictures: Pictures):
    """Draws two rows per model, tokens and PE by layer; the last columns show the last norm."""
    titles = layer_titles(models, 'tokens')
    rows = []
    for label, arrays in models.items():
        for name in ('tokens', 'PE'):
            images, limit = scaled(by_layer(arrays, name.lower()))
            rows.append((f'{label}\n{name}\n±{limit:.2g}', images))
        for column, name in enumerate(LAST, len(titles)):
            if name in arrays:
                rows[-2][1].update(scaled({column: arrays[name]})[0])
        if 'last_pe' in arrays:
            rows[-1][1].update(scaled({column: arrays['last_pe']})[0])
    return table([*titles, *LAST.values()], rows, 'across: channels, down: patches; red is '
                 'positive, blue negative; the last columns have scales of their own',
                 cmap='RdBu_r', vmin=-1, vmax=1, aspect='auto')[0]


def plots(titles: Sequence[str], xlabel: str, width: float = 6.4) -> tuple[Any, Sequence]:
    """A figure with one axes per title."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(width, 3.4), layout='constrained')
    axes = figure.subplots(1, len(titles), squeeze=False)[0]
    for axis, title in zip(axes, titles):
        axis.grid(alpha=.25)
        axis.set(xlabel=xlabel, ylabel=title)
        axis.locator_params(axis='x', integer=True)
    return figure, axes


def draw_correlation(models: Models, pictures: Pictures):
    """Draws one line per model; a star after the last layer stands for the last LayerNorm."""
    figure, (axis,) = plots(['correlation of tokens and PE'], 'layer')
    for index, (label, arrays) in enumerate(models.items()):
        values = arrays['correlation']
        axis.plot(values, 'o-', ms=4, color=f'C{index}', label=label)
        if 'last' in arrays:
            axis.plot([len(values)], [arrays['last']], '*', ms=11, color=f'C{index}',
                      label=f'{label}, last LN')
    axis.axhline(0, color='grey', lw=.8)
    axis.legend(fontsize=8)
    return figure


def draw_last_norm(models: Models, pictures: Pictures):
    """Draws the last LayerNorm's gamma and beta by channel."""
    figure, axes = plots(['gamma', 'beta'], 'channel', width=9.)
    for axis in axes:
        for label, arrays in models.items():
            values = arrays[axis.get_ylabel()]
            axis.plot(values, lw=1, label=f'{label}: variance {values.var():.2g}')
        axis.legend(fontsize=8, loc='lower center', ncols=2, bbox_to_anchor=(.5, 1))
    return figure


def draw_distance(models: Models, pictures: Pictures):
    """Draws one point per head of each layer, and a line through the layers' means."""
    figure, (axis,) = plots(['attention distance, pixels'], 'layer')
    for index, (label, arrays) in enumerate(models.items()):
        layers = by_layer(arrays, 'distance')
        axis.plot(list(layers), [value.mean() for value in layers.values()], color=f'C{index}',
                  label=label)
        for layer, value in layers.items():
            axis.plot([layer] * len(value), value, 'o', ms=3, alpha=.5, color=f'C{index}')
    axis.legend(fontsize=8)
    return figure


def draw_maps(pictures: Pictures, columns: Mapping[str, np.ndarray], alpha: float = 1.):
    """Draws one row per image: the image, then its map from each column (B, h, w) over it."""
    figure, axes = panels(len(pictures), ['image', *columns], size=1.5)
    for line, picture, *maps in zip(axes, pictures, *columns.values()):
        for axis, one in zip(line, [None, *maps]):
            drawn = axis.imshow(picture)
            if one is not None:
                axis.imshow(one, interpolation='nearest', extent=drawn.get_extent(),
                            cmap='inferno', alpha=alpha)
    return figure


def draw_token_norms(models: Models, pictures: Pictures):
    """Draws token norms over four images, before and after the last LayerNorm."""
    return draw_maps(pictures[:4], {
        f'{label}\n{step} last LN': arrays[name] for label, arrays in models.items()
        for step, name in (('before', 'before'), ('after', 'with_position'))}, alpha=.65)


def draw_features(models: Models, pictures: Pictures):
    """Draws each model's feature levels over two images."""
    return draw_maps(pictures[:2], {
        f'{label}\nlevel {level}, {maps.shape[1]} x {maps.shape[2]}': maps
        for label, arrays in models.items() for level, maps in by_layer(arrays, 'level').items()})
