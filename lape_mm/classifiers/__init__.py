"""What classification needs beside a backbone and mmpretrain's own heads; registers with it."""
from lape_mm.requirements import missing

if not missing('mmpretrain', 'mmcv'):
    from .distilled import DistilledClassifier, DistilledClsHead

    __all__ = ['DistilledClassifier', 'DistilledClsHead']
