# DeiT-Ti with any joining. The joining decides between class token and averaged tokens.
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        type='ClsDataPreprocessor',
        num_classes=1000,
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=False),  # the pipelines return RGB
    backbone=dict(
        type='lape_mm.DeiT', arch='tiny', img_size=224, joining='default', drop_path_rate=0.1),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=192,
        # as for every Linear in DeiT
        init_cfg=dict(type='TruncNormal', layer='Linear', std=.02),
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        topk=(1, 5)),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]))

# DeiT's average of weights with decay 0.99996, which mmengine calls a momentum of 4e-5. DeiT starts
# with it. Here the momentum falls from 1 as 10 / (10 + n) and reaches 4e-5 after 250k of the 375k
# iterations: a full run ends with the same average, and a short run has a useful one.
# Validation and checkpoints use the average, while DeiT's logs show the raw weights.
custom_hooks = [
    dict(
        type='EMAHook',
        ema_type='MomentumAnnealingEMA',
        momentum=4e-5,
        gamma=10,
        priority='ABOVE_NORMAL')
]
