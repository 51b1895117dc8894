_base_ = [
    '../_base_/models/upernet_vit_adapter.py', '../_base_/datasets/pascal_voc12_aug_512x512.py',
    '../_base_/schedules/adamw_layer_decay_160k.py', '../_base_/runtime_seg.py'
]

model = dict(decode_head=dict(num_classes=21), auxiliary_head=dict(num_classes=21))
param_scheduler = _base_.param_scheduler
param_scheduler[1]['end'] = 40000
train_cfg = dict(max_iters=40000, val_interval=4000)
default_hooks = dict(checkpoint=dict(interval=4000))
