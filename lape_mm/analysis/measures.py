"""The numbers that the papers' pictures are made of; numpy alone."""
from __future__ import annotations

import numpy as np


def similarity(rows: np.ndarray, eps: float = 1e-8) -> np.ndarray:
    """Cosine similarity of every row with every other, -1..1, as LaPE's official script has it.

    Args:
        rows: (N, C).
        eps: the least norm that is divided by.

    Returns:
        (N, N).
    """
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), eps)
    return unit @ unit.T


def token_map(matrix: np.ndarray, token: int, grid: tuple[int, int]) -> np.ndarray:
    """One row of an (N, N) matrix over patches as an (h, w) map."""
    return matrix[token].reshape(grid)


def center(grid: tuple[int, int]) -> int:
    """The number of the patch in the middle; 105 of 14 x 14 (LaPE's script takes 90)."""
    return grid[0] // 2 * grid[1] + grid[1] // 2


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson's correlation over all elements of two arrays of one shape, -1..1 (figure 4).

    NaN where one of them is constant.
    """
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt((a * a).sum() * (b * b).sum())
    return float((a * b).sum() / scale) if scale > 0 else float('nan')


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine similarity of two vectors, -1..1; NaN where one of them is zero."""
    scale = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / scale) if scale > 0 else float('nan')


def norms(tokens: np.ndarray) -> np.ndarray:
    """L2 norms over the channels, (..., C) to (...)."""
    return np.linalg.norm(tokens, axis=-1)


def distances(grid: tuple[int, int], pitch: tuple[float, float]) -> np.ndarray:
    """Distances of all pairs of patches.

    Args:
        grid: (h, w) in tokens.
        pitch: pixels from one patch to the next, down and across.

    Returns:
        (h * w, h * w), in pixels.
    """
    y, x = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
    return np.hypot((y[:, None] - y) * pitch[0], (x[:, None] - x) * pitch[1])
