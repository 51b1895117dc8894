"""Pictures of the sections' arrays, several models side by side; matplotlib alone."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from .sections import Arrays, by_layer

Models = Mapping[str, Arrays]  # label -> a section's arrays

PANEL = 1.25  # inches
COLORS = ('#1f6fb4', '#d9662b', '#2a9d6e', '#8c4bb3', '#b3456b', '#6b6b6b')
MOST_IMAGES = 4


def grid(rows: int, columns: int, *, width: float = PANEL, height: float = PANEL):
    """A figure of rows x columns bare panels: the figure and its axes."""
    figure = Figure(figsize=(.7 + columns * width, .45 + rows * height), layout='constrained')
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.set_frame_on(False)
    return figure, axes


def show(axis, image: np.ndarray, **options):
    """One panel."""
    axis.set_frame_on(True)
    return axis.imshow(image, interpolation='nearest', **options)


def name_row(axis, text: str) -> None:
    """The label of a row, at its first panel."""
    axis.set_ylabel(text, fontsize=8)


def depth_of(models: Models, name: str) -> int:
    """Columns that a figure over layers needs."""
    return 1 + max(max(by_layer(arrays, name), default=0) for arrays in models.values())


def draw_similarity(models: Models) -> Figure:
    """A model's first row has the whole matrices, its second the maps of the middle patch."""
    columns = depth_of(models, 'map')
    figure, axes = grid(2 * len(models), columns)
    for row, (label, arrays) in enumerate(models.items()):
        for name, panels in (('matrix', axes[2 * row]), ('map', axes[2 * row + 1])):
            for layer, values in by_layer(arrays, name).items():
                drawn = show(panels[layer], values, vmin=-1, vmax=1, cmap='RdBu_r')
            name_row(panels[0], f'{label}\n{"all patches" if name == "matrix" else "one patch"}')
    title_columns(axes, columns)
    figure.colorbar(drawn, ax=axes, shrink=.6, aspect=30, label='cosine similarity')
    return figure


def title_columns(axes, count: int) -> None:
    """Names the columns after the layers."""
    for layer in range(count):
        axes[0, layer].set_title(f'layer {layer}', fontsize=8)


def draw_heads(models: Models, name: str, label: str, **options) -> Figure:
    """Rows are heads, columns layers."""
    columns = depth_of(models, name)
    heads = {model: max(len(value) for value in by_layer(arrays, name).values())
             for model, arrays in models.items()}
    figure, axes = grid(sum(heads.values()), columns, height=1.05, width=1.05)
    row = 0
    for model, arrays in models.items():
        for layer, values in by_layer(arrays, name).items():
            for head, image in enumerate(values):
                show(axes[row + head, layer], image, **options)
        for head in range(heads[model]):
            name_row(axes[row + head, 0], f'{model}\nhead {head}')
        row += heads[model]
    title_columns(axes, columns)
    figure.supxlabel(label, fontsize=8)
    return figure


def draw_bias(models: Models) -> Figure:
    """Relative position bias of the patch in the middle."""
    limit = max(abs(value).max() for arrays in models.values() for value in arrays.values())
    return draw_heads(models, 'bias', f'red adds to the logit, blue takes away; up to {limit:.2g}',
                      cmap='RdBu_r', vmin=-limit or -1, vmax=limit or 1)


def draw_attention(models: Models) -> Figure:
    """Each panel has its own scale."""
    return draw_heads(models, 'attention', 'each panel from no attention (dark) to its largest '
                      'share (bright)', cmap='viridis', vmin=0)


LAST = {'last_before': 'before\nlast LN', 'last_after': 'after\nlast LN',
        'last_with_position': 'after,\nwith PE'}


def draw_heatmaps(models: Models) -> Figure:
    """A model's first row has the tokens, its second PE; at the right the last LayerNorm."""
    depth = depth_of(models, 'tokens')
    figure, axes = grid(2 * len(models), depth + len(LAST))
    for row, (label, arrays) in enumerate(models.items()):
        for name, panels in (('tokens', axes[2 * row]), ('pe', axes[2 * row + 1])):
            layers = by_layer(arrays, name)
            limit = robust(layers.values())
            for layer, values in layers.items():
                heat(panels[layer], values, limit)
            name_row(panels[0], f'{label}\n{"PE" if name == "pe" else name}\n±{limit:.2g}')
        for column, name in enumerate(LAST, depth):
            if name == 'last_with_position' and 'last_pe' not in arrays:
                continue
            if name in arrays:
                limit = robust([arrays[name]])
                heat(axes[2 * row, column], arrays[name], limit)
                axes[2 * row, column].set_xlabel(f'±{limit:.2g}', fontsize=7)
        if 'last_pe' in arrays:
            heat(axes[2 * row + 1, depth + 2], arrays['last_pe'], robust([arrays['last_pe']]))
    title_columns(axes, depth)
    for column, text in enumerate(LAST.values(), depth):
        axes[0, column].set_title(text, fontsize=8)
    figure.supxlabel('across: channels, down: patches; red above zero, blue below', fontsize=8)
    return figure


def robust(values) -> float:
    """The limit of a colour scale: few elements lie beyond."""
    parts = [np.abs(part).ravel() for part in values]
    return float(np.percentile(np.concatenate(parts), 99.5)) or 1. if parts else 1.


def heat(axis, values: np.ndarray, limit: float) -> None:
    """One heatmap of (N, C), stretched to a square panel."""
    show(axis, values, cmap='RdBu_r', vmin=-limit, vmax=limit, aspect='auto')


def plain(width: float, height: float, columns: int = 1):
    """A figure for lines: the figure and its axes."""
    figure = Figure(figsize=(width, height), layout='constrained')
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.spines[['top', 'right']].set_visible(False)
        axis.grid(alpha=.25)
    return figure, axes


def colored(models: Models):
    """Label, arrays and colour of each model."""
    return [(label, arrays, COLORS[index % len(COLORS)])
            for index, (label, arrays) in enumerate(models.items())]


def draw_correlation(models: Models) -> Figure:
    """A line a model; the correlation at the last LayerNorm as a star after the last layer."""
    figure, (axis,) = plain(6.4, 3.4)
    for label, arrays, color in colored(models):
        values = arrays['correlation']
        axis.plot(range(len(values)), values, marker='o', ms=4, color=color, label=label)
        if 'last' in arrays:
            axis.plot([len(values)], [arrays['last']], '*', ms=11, color=color,
                      label=f'{label}, last LN')
    axis.axhline(0, color='#888888', lw=.8)
    axis.set(xlabel='layer', ylabel='correlation of tokens and PE')
    axis.xaxis.get_major_locator().set_params(integer=True)  # there is no half a layer
    axis.legend(fontsize=8, frameon=False)
    return figure


def draw_last_norm(models: Models) -> Figure:
    """gamma and beta, channels in order from left to right."""
    figure, axes = plain(9., 3.4, columns=2)
    for axis, name in zip(axes, ('gamma', 'beta')):
        for label, arrays, color in colored(models):
            axis.plot(arrays[name], lw=1, color=color,
                      label=f'{label}: variance {arrays[name].var():.2g}')
        axis.set_title(name, fontsize=10)
        axis.legend(fontsize=8, frameon=False, loc='upper center', ncols=2,
                    bbox_to_anchor=(.5, -.08))  # below: the lines fill the panel
    return figure


def draw_distance(models: Models) -> Figure:
    """A point a head, a line through the means."""
    figure, (axis,) = plain(6.4, 3.4)
    for label, arrays, color in colored(models):
        layers = by_layer(arrays, 'distance')
        axis.plot(list(layers), [value.mean() for value in layers.values()], color=color,
                  label=label)
        for layer, value in layers.items():
            axis.plot([layer] * len(value), value, 'o', ms=3, alpha=.5, color=color)
    axis.set(xlabel='layer', ylabel='attention distance, pixels')
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(fontsize=8, frameon=False)
    return figure


def draw_token_norms(models: Models, pictures: np.ndarray) -> Figure:
    """An image a row: itself, then each model before and after its last LayerNorm."""
    pictures = pictures[:MOST_IMAGES]
    figure, axes = grid(len(pictures), 1 + 2 * len(models), width=1.5, height=1.5)
    for row, picture in enumerate(pictures):
        show(axes[row, 0], picture)
        for column, arrays in enumerate(models.values()):
            for step, name in enumerate(('before', 'with_position')):
                lay_over(axes[row, 1 + 2 * column + step], picture, arrays[name][row])
    axes[0, 0].set_title('image', fontsize=8)
    for column, label in enumerate(models):
        for step, name in enumerate(('before', 'after')):
            axes[0, 1 + 2 * column + step].set_title(f'{label}\n{name} last LN', fontsize=8)
    return figure


def lay_over(axis, picture: np.ndarray, values: np.ndarray) -> None:
    """A map of (h, w) over a picture of (H, W, 3), from its least value to its largest."""
    height, width = picture.shape[:2]
    show(axis, picture)
    axis.imshow(values, cmap='inferno', alpha=.65, interpolation='bilinear',
                extent=(-.5, width - .5, height - .5, -.5))


def draw_features(models: Models, pictures: np.ndarray) -> Figure:
    """An image a row, the levels of each model beside it."""
    pictures = pictures[:2]
    columns = [(label, level, values) for label, arrays in models.items()
               for level, values in by_layer(arrays, 'level').items()]
    figure, axes = grid(len(pictures), 1 + len(columns), width=1.5, height=1.5)
    for row, picture in enumerate(pictures):
        show(axes[row, 0], picture)
        for column, (label, level, values) in enumerate(columns, 1):
            show(axes[row, column], values[row], cmap='inferno')
            height, width = values[row].shape
            axes[0, column].set_title(f'{label}\nlevel {level}, {height} x {width}', fontsize=8)
    return figure


DRAW: dict[str, Callable[..., Figure]] = {
    'similarity': draw_similarity, 'bias': draw_bias, 'heatmaps': draw_heatmaps,
    'correlation': draw_correlation, 'last_norm': draw_last_norm,
    'token_norms': draw_token_norms, 'attention_distance': draw_distance,
    'attention': draw_attention, 'features': draw_features}
OVER_PICTURES = ('token_norms', 'features')


def draw(key: str, models: Models, pictures: Sequence[np.ndarray]) -> Figure:
    """The figure of a section.

    Args:
        key: of the section.
        models: label -> the section's arrays; at least one model.
        pictures: (H, W, 3) each, 0..1, the images of the record in their order.
    """
    return DRAW[key](models, np.asarray(pictures)) if key in OVER_PICTURES else DRAW[key](models)
