"""Position embedding (PE): tables (`embedding`), rotation (`rotary`), and where they enter."""
from .embedding import KINDS, RELATIVE, position_table, resize_table
from .joining import PRESETS, Joining, PositionPlan, build_joining
from .norm import NORMS
from .rotary import ROTARY, Rotary, rotate

__all__ = ['KINDS', 'NORMS', 'PRESETS', 'RELATIVE', 'ROTARY', 'Joining', 'PositionPlan', 'Rotary',
           'build_joining', 'position_table', 'resize_table', 'rotate']
