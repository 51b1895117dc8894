# Swin-Ti with absolute position embedding and relative bias, as in both papers. The recipe is table
# 7 of the MPVG paper and Swin's own: no average of weights and no repeated augmentation.
_base_ = [
    '../_base_/models/deit_cls.py', '../_base_/datasets/imagenet.py',
    '../_base_/schedules/adamw_1024_300e.py', '../_base_/runtime_cls.py'
]

model = dict(
    backbone=dict(
        _delete_=True,
        type='lape_mm.Swin',
        arch='tiny',
        img_size=224,
        joining='default',
        drop_path_rate=0.2),
    head=dict(in_channels=768))

train_dataloader = dict(
    batch_size=128, sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True))
val_dataloader = dict(batch_size=128)
test_dataloader = val_dataloader

optim_wrapper = dict(clip_grad=dict(max_norm=5.0))
param_scheduler = _base_.param_scheduler
param_scheduler[0]['end'] = param_scheduler[1]['begin'] = 20  # epochs of warm-up
custom_hooks = []
