"""What position embedding does in a model: arrays first, the papers' pictures from them.

    pe_per_layer  the PE that each layer receives, from the model's own plan
    record        what a forward over images does, seen by hooks
    measures      similarity, correlation, distance: numpy alone
    sections      one entry a picture: its arrays and numbers
    figures       drawings of those arrays
    write         files of a report, and its page
"""
from .measures import correlation, similarity
from .pe_per_layer import LayerPE, pe_per_layer
from .record import LastNorm, Record, record
from .sections import SECTIONS, measure

__all__ = ['SECTIONS', 'LastNorm', 'LayerPE', 'Record', 'correlation', 'measure', 'pe_per_layer',
           'record', 'similarity']
