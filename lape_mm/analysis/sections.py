"""Arrays and numbers of a report, a section for each figure."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .measures import center, correlation, cosine, norms, similarity
from .pe_per_layer import LayerPE
from .record import Record

MOST_PATCHES = 1024  # no whole matrix above this: 4096 patches take 130 MB a layer
Arrays = dict[str, np.ndarray]
Numbers = dict[str, Any]  # a number or None, or a list with one a layer


@dataclass(frozen=True)
class Section:
    """One figure.

    Attributes:
        key: name of its files.
        title, paper, meaning: name, source and how to read it.
        measure: turns what the layers receive and what a model did with images into named arrays
            and numbers; no arrays if the model has nothing to show.
    """

    key: str
    title: str
    paper: str
    meaning: str
    measure: Callable[[list[LayerPE], Record], tuple[Arrays, Numbers]]


def layer_name(name: str, layer: int) -> str:
    """Name of one layer's array."""
    return f'{name}{layer:02d}'


def by_layer(arrays: Mapping[str, np.ndarray], name: str) -> dict[int, np.ndarray]:
    """Layer -> its array, of those named by `layer_name`."""
    return {int(key[len(name):]): value for key, value in arrays.items()
            if key.startswith(name) and key[len(name):].isdigit()}


def finite(value: float) -> float | None:
    """The number, or None for NaN, which JSON does not have."""
    return float(value) if np.isfinite(value) else None


def measure_similarity(entries: list[LayerPE], record: Record) -> tuple[Arrays, Numbers]:
    """``map{l}`` (h, w), ``matrix{l}`` (N, N), ``raw`` (h, w), of the table; all -1..1."""
    arrays: Arrays = {}
    means: list[float | None] = []
    for layer, entry in enumerate(entries):
        if entry.patches is None or entry.way == 'attn_bias':
            means.append(None)
            continue
        patches, query = entry.patches, center(entry.grid)
        count, mean = len(patches), None
        if count <= MOST_PATCHES:
            matrix = similarity(patches)
            row = matrix[query]
            arrays[layer_name('matrix', layer)] = matrix
            mean = finite((matrix.sum() - count) / max(count * (count - 1), 1))
        else:
            row = np.array([cosine(patches[query], patch) for patch in patches])
        means.append(mean)
        arrays[layer_name('map', layer)] = row.reshape(entry.grid)
    if arrays and record.table is not None:
        query = record.table[center(record.grids[0])]
        arrays['raw'] = np.array([cosine(query, patch) for patch in record.table]).reshape(
            record.grids[0])
    return arrays, {'mean similarity of two patches': means} if arrays else {}


def measure_bias(entries: list[LayerPE], record: Record) -> tuple[Arrays, Numbers]:
    """``bias{l}`` (heads, h, w), of the patch in the middle to all patches, in logits."""
    arrays = {layer_name('bias', layer): entry.patches[:, center(entry.grid)].reshape(
        -1, *entry.grid) for layer, entry in enumerate(entries)
        if entry.way == 'attn_bias' and entry.patches is not None}
    return arrays, {'standard deviation': [float(value.std()) for value in arrays.values()]} \
        if arrays else {}


def patches_of(values: np.ndarray, prefix: int) -> np.ndarray:
    """(..., T, C) without prefix tokens; one vector an image stays as it is."""
    return values[..., prefix:, :] if values.shape[-2] > prefix else values


def last_tokens(record: Record, name: str) -> np.ndarray:
    """A field of `LastNorm` without prefix tokens, (B, N, C); ``post_norm`` is (N, C)."""
    prefix = record.num_prefix_tokens if record.last and record.last.grid else 0
    return patches_of(getattr(record.last, name), prefix)


def measure_heatmaps(entries: list[LayerPE], record: Record) -> tuple[Arrays, Numbers]:
    """``tokens{l}`` and ``pe{l}`` (N, C), ``last_{before,after,with_position,pe}`` (T, C)."""
    arrays: Arrays = {}
    pe_norms: list[float | None] = []
    token_norms: list[float | None] = []
    for layer, (entry, tokens) in enumerate(zip(entries, record.tokens)):
        tokens = patches_of(tokens, record.num_prefix_tokens)
        arrays[layer_name('tokens', layer)] = tokens
        token_norms.append(float(norms(tokens).mean()))
        patches = None if entry.way == 'attn_bias' else entry.patches
        pe_norms.append(None if patches is None else float(norms(patches).mean()))
        if patches is not None:
            arrays[layer_name('pe', layer)] = patches
    if record.last is not None:
        for name in ('before', 'after', 'with_position'):
            arrays[f'last_{name}'] = getattr(record.last, name).mean(axis=0)
        if record.last.post_norm is not None:
            arrays['last_pe'] = record.last.post_norm
    return arrays, {'mean norm of a token': token_norms, 'mean norm of its PE': pe_norms}


def measure_correlation(entries: list[LayerPE], record: Record) -> tuple[Arrays, Numbers]:
    """``correlation`` (L,), NaN for layers without PE; ``last`` (), with ``post_norm``."""
    values = [correlation(patches_of(tokens, record.num_prefix_tokens), entry.patches)
              if entry.patches is not None and entry.way != 'attn_bias' else float('nan')
              for entry, tokens in zip(entries, record.tokens)]
    if not np.isfinite(values).any():
        return {}, {}
    arrays: Arrays = {'correlation': np.array(values)}
    numbers: Numbers = {'by layer': [*map(finite, values)]}
    if record.last is not None and record.last.post_norm is not None:
        value = correlation(last_tokens(record, 'after').mean(axis=0),
                            last_tokens(record, 'post_norm'))
        arrays['last'], numbers['at the last LN'] = np.array(value), finite(value)
    return arrays, numbers


def measure_last_norm(entries: list[LayerPE], record: Record) -> tuple[Arrays, Numbers]:
    """``gamma``, ``beta``, and pooled ``before``, ``after``, ``with_position``, (C,) each.

    The class token is pooled, or else the mean of the patches, and averaged over the images.
    Variances are divided by C.
    """
    if record.last is None:
        return {}, {}
    last = record.last

    def pooled(name: str) -> np.ndarray:
        tokens = getattr(last, name).mean(axis=0)
        return tokens[0] if record.class_token and last.grid else \
            patches_of(tokens, record.num_prefix_tokens if last.grid else 0).mean(axis=0)
    arrays = {'gamma': last.gamma, 'beta': last.beta,
              **{name: pooled(name) for name in ('before', 'after', 'with_position')}}
    # under averaged tokens the PE term is a constant vector, which adds to beta
    effective = {} if last.post_norm is None or record.class_token else {
        'variance of the effective beta': float(
            (last.beta + arrays['with_position'] - arrays['after']).var())}
    return arrays, {
        'variance of beta': float(last.beta.var()), **effective,
        'variance of gamma': float(last.gamma.var()),
        'cosine before, after': finite(cosine(arrays['before'], arrays['with_position'])),
        'without the PE term': finite(cosine(arrays['before'], arrays['after']))}


def measure_token_norms(entries: list[LayerPE], record: Record) -> tuple[Arrays, Numbers]:
    """``before``, ``after``, ``with_position`` (B, h, w)."""
    if record.last is None or record.last.grid is None:
        return {}, {}
    arrays = {name: norms(last_tokens(record, name)).reshape(-1, *record.last.grid)
              for name in ('before', 'after', 'with_position')}

    def spread(values: np.ndarray) -> float | None:
        return finite((values.std(axis=(1, 2)) / values.mean(axis=(1, 2))).mean())
    return arrays, {'spread over the image before': spread(arrays['before']),
                    'after': spread(arrays['with_position'])}


def measure_distance(entries: list[LayerPE], record: Record) -> tuple[Arrays, Numbers]:
    """``distance{l}`` (heads,), in pixels."""
    arrays = {layer_name('distance', layer): value
              for layer, value in enumerate(record.attention_distance)}
    return arrays, {'mean over heads, pixels': [float(value.mean())
                                                for value in record.attention_distance]}


def measure_attention(entries: list[LayerPE], record: Record) -> tuple[Arrays, Numbers]:
    """``attention{l}`` (heads, h, w), shares of one."""
    arrays = {layer_name('attention', layer): value
              for layer, value in enumerate(record.attention_maps)}
    return arrays, {'largest share of a patch': [float(value.max())
                                                 for value in record.attention_maps]}


def measure_features(entries: list[LayerPE], record: Record) -> tuple[Arrays, Numbers]:
    """``level{k}`` (B, h, w), L2 norms over the channels."""
    arrays = {layer_name('level', level): value
              for level, value in enumerate(record.feature_maps)}
    return arrays, {'mean norm by level': [float(value.mean()) for value in
                                           record.feature_maps]} if arrays else {}


SECTIONS = (
    Section('similarity', 'Position similarity', "LaPE, similarity maps (its official script)",
            'Cosine similarity of the PE that each layer receives: between all patches (large '
            'squares), and between the middle patch and all others (small maps; the last one is of '
            'the raw table). A bright spot in '
            'the middle means that PE tells the layer where a patch is. A layer whose picture '
            'differs from its neighbours receives PE of its own.', measure_similarity),
    Section('bias', 'Relative position bias', "LaPE, similarity maps (its official script)",
            'What each head adds to the logits between the middle patch and all others.',
            measure_bias),
    Section('heatmaps', 'Tokens and PE by layer', 'MPVG, figures 2 and 8',
            'Rows are patches, columns are channels. If a column has opposite colours in the '
            'tokens and in PE, PE counterbalances that channel. The last three panels are the '
            'tokens before the last LayerNorm, after it, and after it with PE; the class token, '
            'if any, is their first row.',
            measure_heatmaps),
    Section('correlation', 'Counterbalance: correlation of tokens and PE', 'MPVG, figure 4',
            'Correlation of the normalised tokens with the PE added to them, by layer. The paper '
            'finds it negative in layer-wise joinings, and more so in deeper layers. Under default '
            "and share, PE goes through the LayerNorm of the layer's tokens first.",
            measure_correlation),
    Section('last_norm', 'The last LayerNorm', 'MPVG, figure 6',
            'Its scale gamma and shift beta by channel. In the paper beta varies a lot under PVG '
            '(variance 0.2387), because beta has to reduce large channels. Under MPVG it varies '
            'little (0.0193), because PE reduces them. With averaged tokens the PE term is one '
            'vector: beta plus its mean over the patches is the effective beta.',
            measure_last_norm),
    Section('token_norms', 'Token norms over images', 'MPVG, figure 7',
            'Norm of each patch before and after the last LayerNorm (with PE), over the image. In '
            'the paper objects stand out more clearly under MPVG.',
            measure_token_norms),
    Section('attention_distance', 'Attention distance', 'ViT, appendix D.7',
            'How far each head looks, one point a head: small is local, large is global.',
            measure_distance),
    Section('attention', 'Attention maps', 'not in the papers',
            'Where the class token looks, averaged over the images; without a class token, where '
            'the middle patch of the image or of each window looks.', measure_attention),
    Section('features', 'Feature maps', 'not in the papers',
            'Norm of the maps that the backbone returns, by level, for the first images.',
            measure_features),
)


def measure(entries: list[LayerPE], record: Record) -> dict[str, tuple[Arrays, Numbers]]:
    """Section key -> arrays and numbers, for the sections that this model has."""
    found = {section.key: section.measure(entries, record) for section in SECTIONS}
    return {key: parts for key, parts in found.items() if parts[0]}
