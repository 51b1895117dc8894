"""What position embedding (PE) does in a model: arrays first, then the papers' figures of them.

    pe_per_layer  the PE that each layer receives, read from the model's plan
    record        hooks that record a forward pass over images
    measures      similarity, correlation, distance, in numpy
    sections      arrays and numbers of each figure, and what it means
    figures       how they are drawn
    write         files of a report, and its page
"""
from .measures import correlation, similarity
from .pe_per_layer import LayerPE, pe_per_layer
from .record import LastNorm, Record, record
from .sections import SECTIONS, measure

__all__ = ['SECTIONS', 'LastNorm', 'LayerPE', 'Record', 'correlation', 'measure', 'pe_per_layer',
           'record', 'similarity']
