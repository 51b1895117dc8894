"""Registries of scope ``lape_mm``, children of mmengine's.

Because they name their locations, ``lape_mm.X`` resolves from mmengine, mmpretrain, mmdet and
mmseg alike.
"""
from mmengine.registry import HOOKS as ROOT_HOOKS
from mmengine.registry import MODEL_WRAPPERS as ROOT_MODEL_WRAPPERS
from mmengine.registry import MODELS as ROOT_MODELS
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS as ROOT_OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.registry import OPTIM_WRAPPERS as ROOT_OPTIM_WRAPPERS
from mmengine.registry import WEIGHT_INITIALIZERS as ROOT_WEIGHT_INITIALIZERS
from mmengine.registry import Registry

ENGINE = ['lape_mm.runs.engine']
HOOKS = Registry('hook', parent=ROOT_HOOKS, scope='lape_mm', locations=ENGINE)
MODEL_WRAPPERS = Registry(
    'model wrapper', parent=ROOT_MODEL_WRAPPERS, scope='lape_mm', locations=ENGINE)
MODELS = Registry('model', parent=ROOT_MODELS, scope='lape_mm',
                  locations=['lape_mm.backbones', 'lape_mm.classifiers'])
OPTIM_WRAPPER_CONSTRUCTORS = Registry(
    'optimizer wrapper constructor', parent=ROOT_OPTIM_WRAPPER_CONSTRUCTORS, scope='lape_mm',
    locations=ENGINE)
OPTIM_WRAPPERS = Registry(
    'optimizer wrapper', parent=ROOT_OPTIM_WRAPPERS, scope='lape_mm', locations=ENGINE)
WEIGHT_INITIALIZERS = Registry('weight initializer', parent=ROOT_WEIGHT_INITIALIZERS,
                               scope='lape_mm', locations=['lape_mm.checkpoints'])
