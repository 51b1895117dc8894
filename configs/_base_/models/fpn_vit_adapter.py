# Semantic FPN on ViT-Adapter-Ti.
_base_ = './upernet_vit_adapter.py'

model = dict(
    neck=dict(type='FPN', in_channels=[192, 192, 192, 192], out_channels=256, num_outs=4),
    decode_head=dict(
        _delete_=True,
        type='FPNHead',
        in_channels=[256, 256, 256, 256],
        in_index=[0, 1, 2, 3],
        feature_strides=[4, 8, 16, 32],
        channels=128,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=_base_.norm_cfg,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    auxiliary_head=None,
    test_cfg=dict(_delete_=True, mode='whole'))
