_base_ = [
    '../_base_/models/upernet_vit_adapter.py', '../_base_/datasets/cityscapes_512x1024.py',
    '../_base_/schedules/adamw_layer_decay_160k.py', '../_base_/runtime_seg.py'
]

model = dict(
    data_preprocessor=dict(size=(512, 1024)),
    decode_head=dict(num_classes=19),
    auxiliary_head=dict(num_classes=19),
    test_cfg=dict(crop_size=(512, 1024), stride=(341, 683)))
param_scheduler = _base_.param_scheduler
param_scheduler[1]['end'] = 80000
train_cfg = dict(max_iters=80000, val_interval=8000)
default_hooks = dict(checkpoint=dict(interval=8000))
auto_scale_lr = dict(base_batch_size=8)
