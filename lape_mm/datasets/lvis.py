"""Restores ``np.float``, which newer numpy lacks, for the evaluation of lvis 0.5.3."""
import numpy as np

if not hasattr(np, 'float'):
    np.float = float  # type: ignore[attr-defined]
