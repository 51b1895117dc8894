"""Position embedding (PE): what it is (`embedding`) and where it enters an encoder (`joining`)."""
from .embedding import KINDS, position_table, resize_table
from .joining import PRESETS, Delivery, Joining, build_joining
from .norm import NORMS
from .relative import RELATIVE

__all__ = ['KINDS', 'NORMS', 'PRESETS', 'RELATIVE', 'Delivery', 'Joining', 'build_joining',
           'position_table', 'resize_table']
