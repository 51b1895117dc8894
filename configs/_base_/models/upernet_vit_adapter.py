# UperNet on ViT-Adapter-Ti: global attention in all layers, and one ViT map for each level.
# The papers start from ImageNet weights trained with the same joining (tables 3 and 4 of MPVG).
# This config starts from random weights until you set
#     --cfg-options model.backbone.init_cfg.checkpoint=work_dirs/CLASSIFIER/epoch_300.pth
norm_cfg = dict(type='BN', requires_grad=True)  # synchronised by `sync_bn` in distributed runs
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512)),
    backbone=dict(
        type='lape_mm.ViTAdapter',
        arch='tiny',
        variant='segmentation',
        img_size=224,
        joining='default',
        drop_path_rate=0.1),
    decode_head=dict(
        type='UPerHead',
        in_channels=[192, 192, 192, 192],
        in_index=[0, 1, 2, 3],
        pool_scales=(1, 2, 3, 6),
        channels=512,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    auxiliary_head=dict(
        type='FCNHead',
        in_channels=192,
        in_index=2,
        channels=256,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=0.4)),
    train_cfg=dict(),
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)))
