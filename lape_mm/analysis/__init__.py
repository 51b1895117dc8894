"""What position embedding does in a model: arrays first, the papers' pictures from them.

    received    the PE that each layer receives, from the model's own plan
    record      what a forward over images does, seen by hooks
    measures    similarity, correlation, distance: numpy alone
    sections    one entry a picture: its arrays and numbers
    figures     drawings of those arrays
    write       files of a report, and its page
"""
from .measures import correlation, similarity
from .received import Received, received
from .record import LastNorm, Record, record
from .sections import SECTIONS, measure

__all__ = ['SECTIONS', 'LastNorm', 'Received', 'Record', 'correlation', 'measure', 'received',
           'record', 'similarity']
