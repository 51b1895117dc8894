"""Measures what position embedding (PE) does in a model, and draws the papers' figures of it."""
from .measures import correlation, similarity
from .pe_per_layer import LayerPE, pe_per_layer
from .record import LastNorm, Record, record
from .sections import SECTIONS, measure

__all__ = ['SECTIONS', 'LastNorm', 'LayerPE', 'Record', 'correlation', 'measure', 'pe_per_layer',
           'record', 'similarity']
