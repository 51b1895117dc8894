"""Do classes, annotations and heads agree? What otherwise ends in zero AP or nan mIoU."""
from __future__ import annotations

from .class_folders import check_class_folders
from .classes import Found
from .coco import check_coco
from .label_maps import check_label_maps


def check(report, source, cls: type | None) -> Found | None:
    """Checks one dataset whose paths exist.

    Args:
        report: `preflight.Report`, which takes the problems.
        source: `preflight.Source`.
        cls: its class.
    """
    if cls is None:
        return None
    family = {base.__name__ for base in cls.__mro__}
    if 'CocoDataset' in family:
        return check_coco(report, source, cls)
    if 'BaseSegDataset' in family:
        check_label_maps(report, source, cls)
    elif 'CustomDataset' in family:
        return check_class_folders(report, source, cls)
    return None
