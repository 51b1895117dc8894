# A small DeiT, from scratch on scenes that the package draws itself: about a minute on two CPU
# cores. Its checkpoint starts quickstart/mask_rcnn.py, whose ViT has the same sizes:
#   --cfg-options model.backbone.init_cfg.checkpoint=work_dirs/deit/epoch_16.pth
#
# For your own class folders pass --data FOLDER; for ImageNet itself see configs/deit.
_base_ = '../_base_/runtime_cls.py'

data_root = '{{$LAPE_MM_SCENES:data/scenes}}/imagenet'
classes = ('disc', 'square', 'triangle', 'star', 'ring', 'cross')
# drawn once, by tools/train.py and tools/test.py, before the run starts
scenes = dict(
    layout='imagenet',
    root=data_root,
    image_size=(64, 64),
    num_train=2400,
    num_val=300,
    seed=0)

model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        type='ClsDataPreprocessor',
        num_classes=6,
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=False),  # the pipelines return RGB
    backbone=dict(
        type='lape_mm.DeiT',
        arch=dict(embed_dim=96, depth=6, num_heads=3),
        img_size=64,
        patch_size=16,
        joining='mpvg'),
    head=dict(
        type='LinearClsHead',
        num_classes=6,
        in_channels=96,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')))

# ends both pipelines: mmpretrain's visualizer draws the network's input as RGB
to_rgb = [dict(type='NumpyToPIL', to_rgb=True), dict(type='PILToNumpy')]
train_pipeline = [
    dict(type='LoadImageFromFile'),
    # the scenes have this size already
    dict(type='ResizeEdge', scale=64, edge='short'),
    dict(type='RandomCrop', crop_size=64, padding=4, padding_mode='reflect'),
    # objects stand more or less upright, so they are never flipped upside down
    dict(type='RandomFlip', prob=0.5, direction='horizontal'), *to_rgb,
    dict(type='PackInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=64, edge='short'),
    dict(type='CenterCrop', crop_size=64), *to_rgb,
    dict(type='PackInputs')
]

# no workers: an image of this size is read in less than a millisecond
train_dataloader = dict(
    batch_size=64,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CustomDataset',
        data_root=data_root,
        data_prefix='train',
        metainfo=dict(classes=classes),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=64,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CustomDataset',
        data_root=data_root,
        data_prefix='val',
        metainfo=dict(classes=classes),
        pipeline=test_pipeline))
test_dataloader = val_dataloader

val_evaluator = dict(type='Accuracy', topk=(1, ))
test_evaluator = val_evaluator

max_epochs = 16
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=max_epochs)
val_cfg = dict()
test_cfg = dict()

optim_wrapper = dict(
    type='OptimWrapper',
    # biases, norms, position embedding and class token take no weight decay
    constructor='lape_mm.LayerDecayOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=2e-3, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(layer_decay_rate=1.0),
    clip_grad=dict(max_norm=5.0))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=0.01,
        by_epoch=True,
        begin=0,
        end=1,
        convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-5,
        by_epoch=True,
        begin=1,
        end=max_epochs,
        convert_to_iter_based=True)
]
auto_scale_lr = dict(enable=False, base_batch_size=64)

default_hooks = dict(
    # more than the iterations of an epoch: one line per epoch
    logger=dict(interval=100),
    checkpoint=dict(interval=max_epochs, max_keep_ckpts=1, save_best=None),
    # draws 20 images of the only validation, ground truth above the prediction
    visualization=dict(enable=True, interval=15, rescale_factor=5.))
randomness = dict(seed=0)
