"""Classifiers and heads that mmpretrain lacks; importing this registers them."""
from lape_mm.requirements import missing

if not missing('mmpretrain', 'mmcv'):
    from .distilled import DistilledClassifier, DistilledClsHead

    __all__ = ['DistilledClassifier', 'DistilledClsHead']
