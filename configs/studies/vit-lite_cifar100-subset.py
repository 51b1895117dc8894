# A narrow ViT-Lite-7/4 on the first 5,000 training images of CIFAR-100, which one CPU thread trains
# in minutes. See benchmarks/studies.py and docs/evidence.md.
_base_ = ['../vit_lite/vit-lite-7-default_1xb128-310e_cifar100.py']

model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dim=96, depth=7, num_heads=3), drop_path_rate=0.),
    head=dict(in_channels=96),
    # no mixup or CutMix, which only help in longer runs
    train_cfg=None)

train_pipeline = [
    dict(
        type='RandomResizedCrop',
        scale=32,
        crop_ratio_range=(0.6, 1.0),
        backend='pillow',
        interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs')
]
train_dataloader = dict(
    batch_size=100,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(indices=5000, pipeline=train_pipeline))
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(indices=2000))
test_dataloader = val_dataloader

max_epochs = 6
train_cfg = dict(max_epochs=max_epochs, val_interval=3)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = _base_.param_scheduler
param_scheduler[0].update(start_factor=0.01, end=1)
param_scheduler[1].update(begin=1, end=max_epochs)
auto_scale_lr = dict(base_batch_size=100)

default_hooks = dict(checkpoint=dict(interval=max_epochs, max_keep_ckpts=1, save_best=None))
randomness = dict(seed=0)
