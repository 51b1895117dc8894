# DeiT-Ti with any joining. Class token or averaged tokens: the backbone does as the joining asks.
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        type='ClsDataPreprocessor',
        num_classes=1000,
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=False),  # the pipelines hand over RGB
    backbone=dict(
        type='lape_mm.DeiT', arch='tiny', img_size=224, joining='default', drop_path_rate=0.1),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=192,
        # as every Linear of DeiT
        init_cfg=dict(type='TruncNormal', layer='Linear', std=.02),
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        topk=(1, 5)),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]))

# DeiT's average with decay 0.99996, which mmengine calls a momentum of 4e-5. DeiT starts with it
# at once; here the momentum falls from 1 as 10 / (10 + n) and reaches 4e-5 after 250k of the 375k
# iterations: the average that a full run ends with is the same, and a short run has a useful one.
# Validation and checkpoints take the average, while DeiT's logs show the raw weights.
custom_hooks = [
    dict(
        type='EMAHook',
        ema_type='MomentumAnnealingEMA',
        momentum=4e-5,
        gamma=10,
        priority='ABOVE_NORMAL')
]
