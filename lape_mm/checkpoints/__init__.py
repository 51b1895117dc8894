"""Checkpoints: safe reading, other projects' key layouts, loading with a report, conversion."""
from .files import CheckpointError, read_checkpoint, trust_checkpoints
from .fit import TransferReport
from .layouts import backbone_state, segmenter_state
from .loader import install_safe_loader
from .transfer import load_backbone

__all__ = ['CheckpointError', 'TransferReport', 'backbone_state', 'install_safe_loader',
           'load_backbone', 'read_checkpoint', 'segmenter_state', 'trust_checkpoints']
