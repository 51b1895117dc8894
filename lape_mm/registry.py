"""Registries of the scope ``lape_mm``, children of mmengine's root registries.

Each names the modules that register its classes, so mmengine, mmpretrain, mmdet and mmseg all
resolve ``lape_mm.X``.
"""
from mmengine import registry as root


def child(parent: root.Registry, *locations: str) -> root.Registry:
    """A child of ``parent`` in the scope ``lape_mm``; it imports ``locations`` on demand."""
    return root.Registry(parent.name, parent=parent, scope='lape_mm', locations=[*locations])


ENGINE = 'lape_mm.runs.engine'
HOOKS = child(root.HOOKS, ENGINE)
MODEL_WRAPPERS = child(root.MODEL_WRAPPERS, ENGINE)
MODELS = child(root.MODELS, 'lape_mm.backbones', 'lape_mm.classifiers')
OPTIM_WRAPPER_CONSTRUCTORS = child(root.OPTIM_WRAPPER_CONSTRUCTORS, ENGINE)
OPTIM_WRAPPERS = child(root.OPTIM_WRAPPERS, ENGINE)
WEIGHT_INITIALIZERS = child(root.WEIGHT_INITIALIZERS, 'lape_mm.checkpoints')
