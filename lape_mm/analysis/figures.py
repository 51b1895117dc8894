"""Draws the arrays of the sections, with several models side by side."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .sections import Arrays, by_layer

Models = Mapping[str, Arrays]  # label -> arrays of a section

PANEL = 1.25  # inches
COLORS = ('#1f6fb4', '#d9662b', '#2a9d6e', '#8c4bb3', '#b3456b', '#6b6b6b')
SMALL = dict(fontsize=8)


def panels(rows: int, columns: int, size: float = PANEL):
    """A figure of rows x columns square panels without ticks: the figure and its axes."""
    figure = Figure(figsize=(.7 + columns * size, .45 + rows * size), layout='constrained')
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.set_frame_on(False)
    return figure, axes


def show(axis, image: np.ndarray, **options):
    """Draws an image into a panel."""
    axis.set_frame_on(True)
    return axis.imshow(image, interpolation='nearest', **options)


def table(titles: Sequence[str], rows: Sequence[tuple[str, Mapping[int, np.ndarray]]],
          size: float = PANEL, **options):
    """A figure of a label and images by column in each row: the figure, its axes, an image."""
    figure, axes = panels(len(rows), len(titles), size)
    for line, (label, images) in zip(axes, rows):
        line[0].set_ylabel(label, **SMALL)
        for column, image in images.items():
            drawn = show(line[column], image, **options)
    for axis, title in zip(axes[0], titles):
        axis.set_title(title, **SMALL)
    return figure, axes, drawn


def layer_titles(models: Models, name: str) -> list[str]:
    """Titles of the columns of a figure over layers."""
    deepest = max(max(by_layer(arrays, name), default=0) for arrays in models.values())
    return [f'layer {layer}' for layer in range(deepest + 1)]


def draw_similarity(models: Models) -> Figure:
    """Two rows a model: the whole matrices, and the maps of the middle patch."""
    titles = layer_titles(models, 'map')
    rows = []
    for label, arrays in models.items():
        raw = {len(titles): arrays['raw']} if 'raw' in arrays else {}
        rows += [(f'{label}\nall patches', by_layer(arrays, 'matrix')),
                 (f'{label}\none patch', {**by_layer(arrays, 'map'), **raw})]
    if any('raw' in arrays for arrays in models.values()):
        titles.append('raw PE')
    figure, axes, drawn = table(titles, rows, vmin=0, vmax=1, cmap='magma')  # as LaPE's script
    figure.colorbar(drawn, ax=axes, shrink=.6, aspect=30, label='cosine similarity')
    return figure


def draw_heads(models: Models, name: str, caption: str, **options) -> Figure:
    """A row a head, a column a layer."""
    rows = []
    for label, arrays in models.items():
        layers = by_layer(arrays, name)
        rows += [(f'{label}\nhead {head}', {layer: values[head] for layer, values in
                                            layers.items() if head < len(values)})
                 for head in range(max(map(len, layers.values())))]
    figure, _, _ = table(layer_titles(models, name), rows, size=1.05, **options)
    figure.supxlabel(caption, **SMALL)
    return figure


def draw_bias(models: Models) -> Figure:
    """Relative position bias of the middle patch."""
    limit = max(abs(value).max() for arrays in models.values() for value in arrays.values())
    return draw_heads(models, 'bias', f'red adds to the logit, blue subtracts; up to {limit:.2g}',
                      cmap='RdBu_r', vmin=-limit or -1, vmax=limit or 1)


def draw_attention(models: Models) -> Figure:
    """Attention by head; each panel has its own scale."""
    return draw_heads(models, 'attention', 'each panel: from no attention (dark) to its largest '
                      'share (bright)', cmap='viridis', vmin=0)


LAST = {'last_before': 'before\nlast LN', 'last_after': 'after\nlast LN',
        'last_with_position': 'after,\nwith PE'}


def draw_heatmaps(models: Models) -> Figure:
    """Two rows a model: tokens and PE by layer; the last columns show the last LayerNorm."""
    titles = layer_titles(models, 'tokens')
    figure, axes = panels(2 * len(models), len(titles) + len(LAST))
    for axis, title in zip(axes[0], [*titles, *LAST.values()]):
        axis.set_title(title, **SMALL)
    for row, (label, arrays) in enumerate(models.items()):
        for name, line in (('tokens', axes[2 * row]), ('PE', axes[2 * row + 1])):
            layers = by_layer(arrays, name.lower())
            limit = heat(line, layers)
            line[0].set_ylabel(f'{label}\n{name}\n±{limit:.2g}', **SMALL)
        for column, name in enumerate(LAST, len(titles)):
            if name in arrays and (name != 'last_with_position' or 'last_pe' in arrays):
                limit = heat(axes[2 * row], {column: arrays[name]})
                axes[2 * row, column].set_xlabel(f'±{limit:.2g}', fontsize=7)
        if 'last_pe' in arrays:
            heat(axes[2 * row + 1], {-1: arrays['last_pe']})
    figure.supxlabel('across: channels, down: patches; red is positive, blue negative', **SMALL)
    return figure


def heat(line, images: Mapping[int, np.ndarray]) -> float:
    """Draws (N, C) arrays by column on one colour scale, stretched to the panels.

    Returns the scale's limit, which half a percent of the elements exceed; 1 without elements.
    """
    values = [np.abs(image).ravel() for image in images.values()]
    limit = float(np.percentile(np.concatenate(values), 99.5)) or 1. if values else 1.
    for column, image in images.items():
        show(line[column], image, cmap='RdBu_r', vmin=-limit, vmax=limit, aspect='auto')
    return limit


def plain(width: float, columns: int = 1):
    """A figure for lines: the figure and its axes."""
    figure = Figure(figsize=(width, 3.4), layout='constrained')
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.spines[['top', 'right']].set_visible(False)
        axis.grid(alpha=.25)
    return figure, axes


def colored(models: Models):
    """Label, arrays and colour of each model."""
    return [(label, arrays, COLORS[index % len(COLORS)])
            for index, (label, arrays) in enumerate(models.items())]


def finish_layers(axis, text: str) -> None:
    """Labels an axis over layers."""
    axis.set(xlabel='layer', ylabel=text)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(fontsize=8, frameon=False)


def draw_correlation(models: Models) -> Figure:
    """A line a model; a star after the last layer is the last LayerNorm."""
    figure, (axis,) = plain(6.4)
    for label, arrays, color in colored(models):
        values = arrays['correlation']
        axis.plot(range(len(values)), values, marker='o', ms=4, color=color, label=label)
        if 'last' in arrays:
            axis.plot([len(values)], [arrays['last']], '*', ms=11, color=color,
                      label=f'{label}, last LN')
    axis.axhline(0, color='#888888', lw=.8)
    finish_layers(axis, 'correlation of tokens and PE')
    return figure


def draw_last_norm(models: Models) -> Figure:
    """gamma and beta by channel."""
    figure, axes = plain(9., columns=2)
    for axis, name in zip(axes, ('gamma', 'beta')):
        for label, arrays, color in colored(models):
            axis.plot(arrays[name], lw=1, color=color,
                      label=f'{label}: variance {arrays[name].var():.2g}')
        axis.set_title(name, fontsize=10)
        axis.legend(fontsize=8, frameon=False, loc='upper center', ncols=2,
                    bbox_to_anchor=(.5, -.08))  # below, because the lines fill the panel
    return figure


def draw_distance(models: Models) -> Figure:
    """A point a head, and a line through the means."""
    figure, (axis,) = plain(6.4)
    for label, arrays, color in colored(models):
        layers = by_layer(arrays, 'distance')
        axis.plot(list(layers), [value.mean() for value in layers.values()], color=color,
                  label=label)
        for layer, value in layers.items():
            axis.plot([layer] * len(value), value, 'o', ms=3, alpha=.5, color=color)
    finish_layers(axis, 'attention distance, pixels')
    return figure


def draw_maps(pictures: np.ndarray, columns: Mapping[str, np.ndarray], **options) -> Figure:
    """A row an image: the image, then a map of each column over its extent.

    Args:
        pictures: (B, H, W, 3), 0..1.
        columns: title -> (B, h, w).
        options: of ``imshow``; with an ``alpha`` the image is drawn below the maps.
    """
    figure, axes = panels(len(pictures), 1 + len(columns), size=1.5)
    extent = (0, pictures.shape[2], pictures.shape[1], 0)
    axes[0, 0].set_title('image', **SMALL)
    for row, picture in enumerate(pictures):
        show(axes[row, 0], picture)
        for column, (title, maps) in enumerate(columns.items(), 1):
            if 'alpha' in options:
                show(axes[row, column], picture, extent=extent)
            show(axes[row, column], maps[row], extent=extent, cmap='inferno', **options)
            axes[0, column].set_title(title, **SMALL)
    return figure


def draw_token_norms(models: Models, pictures: np.ndarray) -> Figure:
    """Norms over four images, before and after the last LayerNorm."""
    return draw_maps(pictures[:4], {
        f'{label}\n{step} last LN': arrays[name] for label, arrays in models.items()
        for step, name in (('before', 'before'), ('after', 'with_position'))}, alpha=.65)


def draw_features(models: Models, pictures: np.ndarray) -> Figure:
    """The levels of each model beside two images."""
    return draw_maps(pictures[:2], {
        f'{label}\nlevel {level}, {maps.shape[1]} x {maps.shape[2]}': maps
        for label, arrays in models.items() for level, maps in by_layer(arrays, 'level').items()})


DRAW: dict[str, Callable[..., Figure]] = {
    'similarity': draw_similarity, 'bias': draw_bias, 'heatmaps': draw_heatmaps,
    'correlation': draw_correlation, 'last_norm': draw_last_norm,
    'attention_distance': draw_distance, 'attention': draw_attention}
WITH_PICTURES = {'token_norms': draw_token_norms, 'features': draw_features}


def draw(key: str, models: Models, pictures: Sequence[np.ndarray]) -> Figure:
    """The figure of a section.

    Args:
        key: of the section.
        models: label -> arrays of the section; at least one model.
        pictures: (H, W, 3) each, 0..1, the images in the order of the record.
    """
    return WITH_PICTURES[key](models, np.asarray(pictures)) if key in WITH_PICTURES else \
        DRAW[key](models)
