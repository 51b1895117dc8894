"""The sections of a report: each figure's arrays, its numbers, and how it is drawn."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import figures
from .measures import center, correlation, cosine, norms, similarity
from .pe_per_layer import LayerPE
from .record import Record

MOST_PATCHES = 1024  # above this, no matrix of all patches: 4096 take 130 MB per layer
Arrays = dict[str, np.ndarray]
Numbers = dict[str, Any]  # a number or None, or a list with one per layer
Measured = tuple[Arrays, Numbers]


class Section(NamedTuple):
    """One figure: its file name, its title, its source, and how to read it.

    ``measure`` returns named arrays and numbers. It returns no arrays if there is nothing to show.
    """

    key: str
    title: str
    paper: str
    meaning: str
    measure: Callable[[list[LayerPE], Record], Measured]
    draw: Callable[[figures.Models, figures.Pictures], Any]


def layerwise(name: str, values: Sequence[np.ndarray | None]) -> Arrays:
    """Names each layer's array, such as ``map07``; layers without one are left out."""
    return {f'{name}{layer:02d}': value for layer, value in enumerate(values) if value is not None}


def with_number(name: str, what: str, number: Callable, values: Sequence[np.ndarray]) -> Measured:
    """Each layer's array, and a number computed from it."""
    return layerwise(name, values), {what: [float(number(value)) for value in values]}


def finite(value: float) -> float | None:
    """The number, or None for NaN, which JSON does not have."""
    return float(value) if np.isfinite(value) else None


def added(entries: list[LayerPE]) -> list[np.ndarray | None]:
    """The PE (N, C) added to each layer's patches; None for an attention bias or no PE."""
    return [None if entry.way == 'attn_bias' else entry.patches for entry in entries]


def measure_similarity(entries: list[LayerPE], record: Record) -> Measured:
    """Similarity of PE: ``map{l}`` (h, w), ``matrix{l}`` (N, N), and the table's ``raw`` (h, w)."""
    def around(patches: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
        return similarity(patches[[center(grid)]], patches).reshape(grid)

    if record.table is None:
        return {}, {}
    received = added(entries)
    matrices = [None if patches is None or len(patches) > MOST_PATCHES else similarity(patches)
                for patches in received]
    maps = layerwise('map', [None if patches is None else around(patches, entry.grid)
                             for entry, patches in zip(entries, received)])
    maps['raw'] = around(record.table, record.grids[0])
    return {**layerwise('matrix', matrices), **maps}, {'mean similarity of two patches': [
        None if matrix is None else
        float((matrix.sum() - len(matrix)) / max(len(matrix) * (len(matrix) - 1), 1))
        for matrix in matrices]}


def measure_bias(entries: list[LayerPE], record: Record) -> Measured:
    """``bias{l}`` (heads, h, w): the bias from the middle patch to all patches, in logits."""
    return with_number('bias', 'standard deviation', np.std, [
        entry.patches[:, center(entry.grid)].reshape(-1, *entry.grid) for entry in entries
        if entry.way == 'attn_bias' and entry.patches is not None])


def measure_heatmaps(entries: list[LayerPE], record: Record) -> Measured:
    """``tokens{l}``, ``pe{l}`` (N, C); ``last_{before,after,with_position,pe}`` (T, C)."""
    tokens = [tokens[record.num_prefix_tokens:] for tokens in record.tokens]
    received, last = added(entries), record.last
    arrays = {**layerwise('tokens', tokens), **layerwise('pe', received)}
    if last is not None:
        arrays['last_before'], arrays['last_after'] = last.before.mean(0), last.after.mean(0)
        if last.post_norm is not None:
            arrays['last_with_position'] = last.with_position.mean(axis=0)
            arrays['last_pe'] = last.post_norm
    return arrays, {name: [None if rows is None else float(norms(rows).mean()) for rows in values]
                    for name, values in (('mean norm of a token', tokens),
                                         ('mean norm of its PE', received))}


def measure_correlation(entries: list[LayerPE], record: Record) -> Measured:
    """``correlation`` (L,), NaN for layers without PE; ``last`` (), if PE follows the last norm."""
    values = [float('nan') if patches is None else
              correlation(tokens[record.num_prefix_tokens:], patches)
              for patches, tokens in zip(added(entries), record.tokens)]
    if not np.isfinite(values).any():
        return {}, {}
    arrays: Arrays = {'correlation': np.array(values)}
    numbers: Numbers = {'by layer': [*map(finite, values)]}
    if record.last is not None and record.last.post_norm is not None:
        value = correlation(record.last.patches('after').mean(axis=0),
                            record.last.patches('post_norm'))
        arrays['last'], numbers['at the last LN'] = np.array(value), finite(value)
    return arrays, numbers


def measure_last_norm(entries: list[LayerPE], record: Record) -> Measured:
    """``gamma``, ``beta``, and the pooled ``before``, ``after``, ``with_position``; (C,) each.

    Pooling takes the class token, or else the mean of the patches, and averages over the images.
    Variances divide by C.
    """
    if record.last is None:
        return {}, {}
    last = record.last

    def pooled(name: str) -> np.ndarray:
        return getattr(last, name)[:, 0].mean(axis=0) if record.class_token and last.grid else \
            last.patches(name).mean(axis=(0, 1))
    arrays = {'gamma': last.gamma, 'beta': last.beta,
              **{name: pooled(name) for name in ('before', 'after', 'with_position')}}
    # with averaged tokens the PE term is a constant vector, which adds to beta
    effective = {} if last.post_norm is None or record.class_token else {
        'variance of the effective beta': float(
            (last.beta + arrays['with_position'] - arrays['after']).var())}
    return arrays, {
        'variance of beta': float(last.beta.var()), **effective,
        'variance of gamma': float(last.gamma.var()),
        'cosine before, after': finite(cosine(arrays['before'], arrays['with_position'])),
        'without the PE term': finite(cosine(arrays['before'], arrays['after']))}


def measure_token_norms(entries: list[LayerPE], record: Record) -> Measured:
    """Patch norms (B, h, w) at the last LayerNorm: ``before``, ``after``, ``with_position``."""
    if record.last is None or record.last.grid is None:
        return {}, {}
    arrays = {name: norms(record.last.patches(name)).reshape(-1, *record.last.grid)
              for name in ('before', 'after', 'with_position')}

    def spread(values: np.ndarray) -> float | None:
        return finite((values.std(axis=(1, 2)) / values.mean(axis=(1, 2))).mean())
    return arrays, {'spread over the image before': spread(arrays['before']),
                    'after': spread(arrays['with_position'])}


SECTIONS = (
    Section('similarity', 'Position similarity', "LaPE, similarity maps (its official script)",
            'Cosine similarity of the PE that each layer receives, between all patches, and '
            'between the middle patch and all others (also of the raw table). A bright spot in the '
            'middle means that PE tells the layer where a patch is.',
            measure_similarity, figures.draw_similarity),
    Section('bias', 'Relative position bias', "LaPE, similarity maps (its official script)",
            'What each head adds to the logits between the middle patch and all others.',
            measure_bias, lambda models, _: figures.draw_heads(models, 'bias', signed=True)),
    Section('heatmaps', 'Tokens and PE by layer', 'MPVG, figures 2 and 8',
            'Rows are patches, columns are channels. If a column has opposite colours in the '
            'tokens and in PE, PE counterbalances that channel. In the last three panels a class '
            'token is the first row.', measure_heatmaps, figures.draw_heatmaps),
    Section('correlation', 'Counterbalance: correlation of tokens and PE', 'MPVG, figure 4',
            'Correlation of the normalised tokens with the PE added to them, by layer. The paper '
            'finds it negative in layer-wise joinings, and more so in deeper layers. Under default '
            "and share, PE goes through the LayerNorm of the layer's tokens first.",
            measure_correlation, figures.draw_correlation),
    Section('last_norm', 'The last LayerNorm', 'MPVG, figure 6',
            'Its scale gamma and shift beta by channel. In the paper beta varies a lot under PVG '
            '(variance 0.2387), and little under MPVG (0.0193), where PE reduces large channels '
            'instead. With averaged tokens, beta plus the mean PE term is the effective beta.',
            measure_last_norm, figures.draw_last_norm),
    Section('token_norms', 'Token norms over images', 'MPVG, figure 7',
            'Norm of each patch before and after the last LayerNorm (with PE), over the image. In '
            'the paper objects stand out more clearly under MPVG.',
            measure_token_norms, figures.draw_token_norms),
    Section('attention_distance', 'Attention distance', 'ViT, appendix D.7',
            'How far each head looks, one point per head: small is local, large is global.',
            lambda entries, seen: with_number(
                'distance', 'mean over heads, pixels', np.mean, seen.attention_distance),
            figures.draw_distance),
    Section('attention', 'Attention maps', 'not in the papers',
            'Where the class token looks, averaged over the images; without a class token, where '
            'the middle patch of the image or of each window looks.',
            lambda entries, seen: with_number(
                'attention', 'largest share of a patch', np.max, seen.attention_maps),
            lambda models, _: figures.draw_heads(models, 'attention', signed=False)),
    Section('features', 'Feature maps', 'not in the papers',
            'Norm of the maps that the backbone returns, by level, for the first images.',
            lambda entries, seen: with_number(
                'level', 'mean norm by level', np.mean, seen.feature_maps),
            figures.draw_features),
)


def measure(entries: list[LayerPE], record: Record) -> dict[str, tuple[Arrays, Numbers]]:
    """Section key -> arrays and numbers; sections without arrays are left out."""
    found = {section.key: section.measure(entries, record) for section in SECTIONS}
    return {key: parts for key, parts in found.items() if parts[0]}
