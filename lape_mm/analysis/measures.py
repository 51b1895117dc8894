"""The numbers behind the papers' figures, in numpy."""
from __future__ import annotations

import numpy as np


def similarity(rows: np.ndarray, others: np.ndarray | None = None, eps: float = 1e-8) -> np.ndarray:
    """Cosine similarity of all ``rows`` with all ``others``, as in LaPE's official script.

    ``rows`` are (N, C) and ``others`` (M, C), by default the rows themselves. The result is (N, M)
    in -1..1. Norms below ``eps`` count as ``eps``.
    """
    others = rows if others is None else others
    ours, theirs = (part / np.maximum(norms(part), eps)[:, None] for part in (rows, others))
    return ours @ theirs.T


def center(grid: tuple[int, int]) -> int:
    """Index of the middle patch, or the upper left of four: 90 in 14 x 14 patches, as in LaPE."""
    return (grid[0] - 1) // 2 * grid[1] + (grid[1] - 1) // 2


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson correlation over all elements (MPVG, figure 4); NaN if an array is constant."""
    return cosine((a - a.mean()).ravel(), (b - b.mean()).ravel())


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine similarity of two vectors, -1..1; NaN if one is zero."""
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else float('nan')


def norms(tokens: np.ndarray) -> np.ndarray:
    """L2 norms over the channels, (..., C) to (...)."""
    return np.linalg.norm(tokens, axis=-1)


def distances(grid: tuple[int, int], pitch: tuple[float, float]) -> np.ndarray:
    """Distances between all patches (h * w, h * w); neighbours are ``pitch`` (y, x) apart."""
    y, x = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
    return np.hypot((y[:, None] - y) * pitch[0], (x[:, None] - x) * pitch[1])
