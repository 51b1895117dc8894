# T2T-ViT-7 from ImageNet to CIFAR-100, as in the official transfer_learning.py. It starts from a
# checkpoint with the same joining, the official one or your own:
#   --cfg-options model.backbone.init_cfg.checkpoint=PATH_OR_URL
_base_ = ['../_base_/datasets/cifar100.py', '../_base_/runtime_cls.py']

model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        type='ClsDataPreprocessor',
        num_classes=100,
        mean=[125.307, 122.961, 113.8575],
        std=[51.5865, 50.847, 51.255],
        to_rgb=False),  # CIFAR's images are RGB
    backbone=dict(type='lape_mm.T2TViT', arch='7', img_size=224, joining='default'),
    head=dict(
        type='LinearClsHead',
        num_classes=100,
        in_channels=256,
        init_cfg=dict(type='TruncNormal', layer='Linear', std=.02),
        loss=dict(type='CrossEntropyLoss'),
        topk=(1, 5)))

train_pipeline = [
    dict(type='Resize', scale=(224, 224), backend='pillow', interpolation='bilinear'),
    dict(type='RandomCrop', crop_size=224, padding=28),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs')
]
test_pipeline = [
    dict(type='Resize', scale=(224, 224), backend='pillow', interpolation='bilinear'),
    dict(type='PackInputs')
]
train_dataloader = dict(drop_last=False, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

# The head learns at the full rate. The tokens-to-token module and the blocks (with their PE norms)
# learn at a hundredth of it. The rest of the backbone is frozen, also MPVG's last PE norm.
frozen = dict(lr_mult=0., decay_mult=0.)
optim_wrapper = dict(
    type='OptimWrapper',
    constructor='lape_mm.FreezingOptimWrapperConstructor',
    optimizer=dict(type='SGD', lr=0.05, momentum=0.9, weight_decay=5e-4),
    paramwise_cfg=dict(
        custom_keys={
            'backbone.patch_embed': dict(lr_mult=0.01),
            'backbone.blocks': dict(lr_mult=0.01),
            'backbone.cls_token': frozen,
            'backbone.pos_embed': frozen,
            'backbone.norm': frozen,
            'backbone.last_pe_norm': frozen
        }))
# all groups end at the same rate, as officially
param_scheduler = [
    dict(type='CosineAnnealingLR', eta_min=2e-4, by_epoch=True, begin=0, end=60)
]
train_cfg = dict(by_epoch=True, max_epochs=60, val_interval=1)
val_cfg = dict()
test_cfg = dict()
default_hooks = dict(checkpoint=dict(interval=5))

auto_scale_lr = dict(enable=False, base_batch_size=128)
