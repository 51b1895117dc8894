# ImageNet-1K as in DeiT: {root}/{train,val}/<class folder>/*.JPEG, bicubic resizing throughout.
#
# Classes are the sorted folder names. A flat val folder with a list works with
# --cfg-options val_dataloader.dataset.ann_file=meta/val.txt.
data_root = '{{$LAPE_MM_IMAGENET:data/imagenet}}'
bgr_mean = [103.53, 116.28, 123.675]
bgr_std = [57.375, 57.12, 58.395]

# timm's rand-m9-mstd0.5-inc1. DeiT's colour jitter of 0.3 is not here: timm drops jitter under an
# auto-augment policy, so DeiT's argument has no effect.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=224, backend='pillow', interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(
        type='RandAugment',
        policies='timm_increasing',
        num_policies=2,
        magnitude_level=9,
        magnitude_std=0.5,
        total_level=10,
        hparams=dict(pad_val=[104, 116, 124], interpolation='bicubic')),
    # as timm's 'pixel' mode: standard normal noise after normalisation
    dict(
        type='RandomErasing',
        erase_prob=0.25,
        mode='rand',
        min_area_ratio=0.02,
        max_area_ratio=1 / 3,
        fill_color=bgr_mean,
        fill_std=bgr_std),
    # RGB from here on, because mmpretrain's visualizer draws the network's input
    dict(type='NumpyToPIL', to_rgb=True),
    dict(type='PILToNumpy'),
    dict(type='PackInputs')
]
# DeiT's crop ratio 0.875, that is 224 of 256. LaPE's code evaluates with ratio 1.0. For that:
# --cfg-options test_dataloader.dataset.pipeline.1.scale=224 (and the same for val_dataloader).
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='ResizeEdge', scale=256, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='NumpyToPIL', to_rgb=True),
    dict(type='PILToNumpy'),
    dict(type='PackInputs')
]

train_dataloader = dict(
    batch_size=256,
    num_workers=10,
    persistent_workers=True,
    pin_memory=True,
    collate_fn=dict(type='default_collate'),
    # an epoch draws a third of the images, each three times with new augmentation
    sampler=dict(type='RepeatAugSampler', num_repeats=3, shuffle=True),
    dataset=dict(
        type='CustomDataset', data_root=data_root, data_prefix='train', pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=256,
    num_workers=10,
    persistent_workers=True,
    pin_memory=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CustomDataset', data_root=data_root, data_prefix='val', pipeline=test_pipeline))
test_dataloader = val_dataloader

val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_evaluator = val_evaluator
