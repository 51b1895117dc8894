# ViT-Lite-7/4 with any joining; for CVT and CCT set arch='cvt_7_4' or 'cct_7_3x1'.
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        type='ClsDataPreprocessor',
        num_classes=100,
        mean=[129.3105, 124.1085, 112.404],
        std=[68.2125, 65.4075, 70.4055],
        to_rgb=False),  # the pipelines return RGB
    backbone=dict(
        type='lape_mm.CompactTransformer',
        arch='vit_lite_7_4',
        img_size=32,
        joining='default',
        drop_path_rate=0.1),
    head=dict(
        type='LinearClsHead',
        num_classes=100,
        in_channels=256,
        # as for every Linear in Compact-Transformers
        init_cfg=dict(type='TruncNormal', layer='Linear', std=.02),
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        topk=(1, 5)),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]))
