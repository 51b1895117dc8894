"""numpy's old name ``np.float`` for the evaluation of lvis 0.5.3, where numpy has it no more."""
import numpy as np

if not hasattr(np, 'float'):
    np.float = float  # type: ignore[attr-defined]
