# A small DeiT from scratch on imagenet_mini, ten classes of ImageNet with 60 images each. A run
# takes one CPU thread about two minutes. See benchmarks/studies.py and docs/evidence.md.
_base_ = ['../_base_/schedules/adamw_1024_300e.py', '../_base_/runtime_cls.py']

data_root = '{{$LAPE_MM_IMAGENET:data/imagenet}}'

model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        type='ClsDataPreprocessor',
        num_classes=10,
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=True),
    backbone=dict(
        type='lape_mm.DeiT',
        arch=dict(embed_dim=96, depth=6, num_heads=3),
        img_size=96,
        patch_size=16,
        joining='default'),  # set another with --joining
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=96,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')))

small = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(112, 112), backend='pillow', interpolation='bicubic')
]
train_pipeline = [
    *small,
    dict(
        type='RandomResizedCrop',
        scale=96,
        crop_ratio_range=(0.35, 1.0),
        backend='pillow',
        interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs')
]
test_pipeline = [*small, dict(type='CenterCrop', crop_size=96), dict(type='PackInputs')]
dataset_type = 'CustomDataset'

train_dataloader = dict(
    batch_size=50,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type=dataset_type, data_root=data_root, data_prefix='train', pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=100,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type, data_root=data_root, data_prefix='val', pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1, ))
test_evaluator = val_evaluator

max_epochs = 40
train_cfg = dict(max_epochs=max_epochs, val_interval=10)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = _base_.param_scheduler
param_scheduler[0].update(start_factor=0.01, end=5)
param_scheduler[1].update(begin=5, end=max_epochs)
auto_scale_lr = dict(base_batch_size=50)

default_hooks = dict(
    logger=dict(interval=12),
    checkpoint=dict(interval=max_epochs, max_keep_ckpts=1, save_best=None))
randomness = dict(seed=0)
