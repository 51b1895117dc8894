"""Position embedding (PE): its tables (`embedding`) and where it enters an encoder (`joining`)."""
from .embedding import KINDS, RELATIVE, position_table, resize_table
from .joining import PRESETS, Joining, JoiningProtocol, PositionPlan, build_joining
from .norm import NORMS

__all__ = ['KINDS', 'NORMS', 'PRESETS', 'RELATIVE', 'Joining', 'JoiningProtocol', 'PositionPlan',
           'build_joining', 'position_table', 'resize_table']
