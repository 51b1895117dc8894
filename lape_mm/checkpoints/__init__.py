"""Checkpoints of one's own and of others: safe reading, key layouts, transfer with a report."""
from .files import CheckpointError, install_safe_loader, read_checkpoint
from .layouts import backbone_state, segmenter_state
from .transfer import TransferReport, load_backbone

__all__ = ['CheckpointError', 'TransferReport', 'backbone_state', 'install_safe_loader',
           'load_backbone', 'read_checkpoint', 'segmenter_state']
