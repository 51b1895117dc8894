"""What a report has to say, one section a picture of the papers: arrays and numbers, no drawing."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .measures import center, correlation, cosine, norms, similarity
from .pe_per_layer import LayerPE
from .record import Record

MOST_TOKENS = 1024  # a whole matrix of more patches is left out: 4096 of them take 130 MB a layer
Arrays = dict[str, np.ndarray]
Numbers = dict[str, Any]  # a number or None, or a list of these, one a layer


@dataclass(frozen=True)
class Section:
    """One picture.

    Attributes:
        key: name of its files.
        title, paper, meaning: for people; where the papers have it, and how to read it.
        measure: from what the layers receive and what the model did with images to named arrays
            and named numbers (one, or one a layer, None where there is none); no arrays where
            the model has nothing to show.
        find: from the numbers of all models, by label, to what they say in these; '' for nothing.
    """

    key: str
    title: str
    paper: str
    meaning: str
    measure: Callable[[list[LayerPE], Record], tuple[Arrays, Numbers]]
    find: Callable[[Mapping[str, Numbers]], str] = lambda numbers: ''


def layer_name(name: str, layer: int) -> str:
    """Name of one layer's array."""
    return f'{name}{layer:02d}'


def by_layer(arrays: Mapping[str, np.ndarray], name: str) -> dict[int, np.ndarray]:
    """A layer's number -> its array, of those named by `layer_name`."""
    return {int(key[len(name):]): value for key, value in arrays.items()
            if key.startswith(name) and key[len(name):].isdigit()}


def finite(value: float) -> float | None:
    """The number, or None for NaN, which JSON does not know."""
    return float(value) if np.isfinite(value) else None


def measure_similarity(entries: list[LayerPE], record: Record) -> tuple[Arrays, Numbers]:
    """``map{l}`` (h, w), ``matrix{l}`` (N, N), both -1..1."""
    arrays: Arrays = {}
    means: list[float | None] = []
    for layer, entry in enumerate(entries):
        patches, query = entry.patches, center(entry.grid)
        if patches is None or entry.way == 'attn_bias':
            means.append(None)
            continue
        if len(patches) <= MOST_TOKENS:
            matrix = similarity(patches)
            arrays[layer_name('matrix', layer)] = matrix
            row = matrix[query]
            count = len(patches)
            means.append(finite((matrix.sum() - count) / max(count * (count - 1), 1)))
        else:
            row = np.array([cosine(patches[query], patch) for patch in patches])
            means.append(None)
        arrays[layer_name('map', layer)] = row.reshape(entry.grid)
    return arrays, {'mean similarity of two patches': means} if arrays else {}


def measure_bias(entries: list[LayerPE], record: Record) -> tuple[Arrays, Numbers]:
    """``bias{l}`` (heads, h, w), of the patch in the middle to all patches, in logits."""
    arrays = {layer_name('bias', layer): entry.patches[:, center(entry.grid)].reshape(
        -1, *entry.grid) for layer, entry in enumerate(entries)
        if entry.way == 'attn_bias' and entry.patches is not None}
    return arrays, {'standard deviation': [float(value.std()) for value in arrays.values()]} \
        if arrays else {}


def patches_of(values: np.ndarray, prefix: int) -> np.ndarray:
    """(..., T, C) without prefix tokens; a single vector an image is left as it is."""
    return values[..., prefix:, :] if values.shape[-2] > prefix else values


def last_tokens(record: Record, name: str) -> np.ndarray:
    """An array of the last LayerNorm without prefix tokens, (B, N, C); ``post_norm`` is (N, C)."""
    prefix = record.num_prefix_tokens if record.last and record.last.grid else 0
    return patches_of(getattr(record.last, name), prefix)


def measure_heatmaps(entries: list[LayerPE], record: Record) -> tuple[Arrays, Numbers]:
    """``tokens{l}`` and ``pe{l}`` (N, C), ``last_{before,after,with_position,pe}`` (N, C)."""
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
            arrays[f'last_{name}'] = last_tokens(record, name).mean(axis=0)
        if record.last.post_norm is not None:
            arrays['last_pe'] = last_tokens(record, 'post_norm')
    return arrays, {'mean norm of a token': token_norms, 'mean norm of its PE': pe_norms}


def measure_correlation(entries: list[LayerPE], record: Record) -> tuple[Arrays, Numbers]:
    """``correlation`` (L,), NaN where a layer receives nothing; ``last`` (), of ``post_norm``."""
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


def find_correlation(numbers: Mapping[str, Numbers]) -> str:
    """Whether the counterbalance of the paper is there, and grows with depth."""
    found = []
    for label, values in numbers.items():
        layers = [value for value in values['by layer'] if value is not None]
        sign = 'negative in every layer' if max(layers) < 0 else \
            'positive in every layer' if min(layers) > 0 else 'of either sign'
        slope = np.polyfit(range(len(layers)), layers, 1)[0] if len(layers) > 1 else 0.
        found.append(f'{label}: {sign}, {layers[0]:.2f} in the first layer that has one and '
                     f'{layers[-1]:.2f} in the last, {slope:+.3f} a layer')
    return '; '.join(found) + '.'


def measure_last_norm(entries: list[LayerPE], record: Record) -> tuple[Arrays, Numbers]:
    """``gamma``, ``beta`` (C,), and what is pooled ``before``, ``after``, ``with_position`` (C,).

    Pooled is the class token where there is one, else the mean of the patches, both averaged over
    the images; variances are those of the C values, divided by C.
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
    return arrays, {
        'variance of beta': float(last.beta.var()), 'variance of gamma': float(last.gamma.var()),
        'cosine before, after': finite(cosine(arrays['before'], arrays['with_position'])),
        'without the PE term': finite(cosine(arrays['before'], arrays['after']))}


def find_last_norm(numbers: Mapping[str, Numbers]) -> str:
    """Whose beta varies least."""
    if len(numbers) < 2:
        return ''
    ranked = sorted(numbers, key=lambda label: numbers[label]['variance of beta'])
    return 'Variance of beta, the smallest first: ' + ', '.join(
        f'{label} {numbers[label]["variance of beta"]:.2g}' for label in ranked) + '.'


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
            'Cosine similarity of the PE that each layer receives: of all patches with all (large '
            'squares), and of the patch in the middle with all (small maps). A bright spot around '
            'the middle means that the layer is told where a patch is; a layer whose picture '
            "differs from its neighbours' is told it in a way of its own.", measure_similarity),
    Section('bias', 'Relative position bias', "LaPE, similarity maps (its official script)",
            'What each head adds to the logits between the patch in the middle and all others.',
            measure_bias),
    Section('heatmaps', 'Tokens and PE by layer', 'MPVG, figures 2 and 8',
            'Rows are patches, columns channels. Where a column of the tokens has the colour '
            'opposite to the same column of PE, PE counterbalances that channel. The last three '
            'are the tokens before and after the last LayerNorm, without and with PE there.',
            measure_heatmaps),
    Section('correlation', 'Counterbalance: correlation of tokens and PE', 'MPVG, figure 4',
            'Correlation of the normalised tokens with the PE added to them, by layer. The paper '
            'finds it negative, and more so the deeper the layer, in layer-wise joinings. Under '
            'default and share it is the correlation with PE through the LayerNorm of the tokens.',
            measure_correlation, find_correlation),
    Section('last_norm', 'The last LayerNorm', 'MPVG, figure 6',
            'Its scale gamma and shift beta by channel. The paper finds that beta varies a lot '
            'under PVG (0.2387), since beta has to take large channels back, and little under MPVG '
            '(0.0193), where PE does.', measure_last_norm, find_last_norm),
    Section('token_norms', 'Token norms over images', 'MPVG, figure 7',
            "Each patch's norm before and after the last LayerNorm (with its PE term), over the "
            'image. The paper finds that objects stand out more clearly under MPVG.',
            measure_token_norms),
    Section('attention_distance', 'Attention distance', 'ViT, appendix D.7',
            'How far the heads look, one point a head: small is local, large is global.',
            measure_distance),
    Section('attention', 'Attention maps', 'not in the papers',
            'Where the class token looks or, without one, the patch in the middle (of every '
            'window, where there are windows); averaged over the images.', measure_attention),
    Section('features', 'Feature maps', 'not in the papers',
            'Norm of what the backbone hands to the heads, level by level, of the first images.',
            measure_features),
)


def measure(entries: list[LayerPE], record: Record) -> dict[str, tuple[Arrays, Numbers]]:
    """The arrays and numbers of every section that has some, by its key."""
    found = {section.key: section.measure(entries, record) for section in SECTIONS}
    return {key: parts for key, parts in found.items() if parts[0]}
