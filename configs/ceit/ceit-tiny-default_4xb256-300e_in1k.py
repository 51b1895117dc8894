# CeiT-Ti: DeiT's recipe (table 7 of the MPVG paper).
_base_ = [
    '../_base_/models/deit_cls.py', '../_base_/datasets/imagenet.py',
    '../_base_/schedules/adamw_1024_300e.py', '../_base_/runtime_cls.py'
]

model = dict(backbone=dict(type='lape_mm.CeiT'))

# averages BatchNorm statistics along with the weights
custom_hooks = _base_.custom_hooks
custom_hooks[0]['update_buffers'] = True
