# A small ViT on the 50,000 training images of CIFAR-100, tested on the 10,000, in eight epochs.
# See benchmarks/studies.py and docs/evidence.md.
_base_ = ['../vit_lite/vit-lite-7-default_1xb128-310e_cifar100.py']

model = dict(
    backbone=dict(
        _delete_=True,
        type='lape_mm.DeiT',
        arch=dict(embed_dim=96, depth=6, num_heads=3, mlp_ratio=2.),
        patch_size=4,
        img_size=32,
        joining='default'),
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
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

max_epochs = 8
train_cfg = dict(max_epochs=max_epochs, val_interval=2)
optim_wrapper = dict(
    optimizer=dict(lr=1e-3, weight_decay=0.05), paramwise_cfg=dict(decay_embeddings=False))
param_scheduler = _base_.param_scheduler
param_scheduler[0].update(start_factor=0.01, end=1)
param_scheduler[1].update(begin=1, end=max_epochs)

default_hooks = dict(checkpoint=dict(interval=1, max_keep_ckpts=1, save_best=None))
randomness = dict(seed=0)
