# Segmenter: DeiT-Ti on crops of 32 x 32 tokens, with the mask transformer.
#
# The official code and mmseg's port differ; this config chooses. The encoder keeps LN eps 1e-6 and
# bicubic resizing, with which DeiT's weights were trained; official Segmenter weights need
# norm_eps=1e-5 and interpolation='bilinear'. The decoder follows the
# official code: LN eps 1e-5, dropout 0.1, no drop path, windows without overlap (mmseg: no
# dropout, drop path 0.1, stride 480). Images are normalised with ImageNet's statistics, as in DeiT.
# The papers start from ImageNet weights trained with the same joining.
# This config starts from random weights until you set
#     --cfg-options model.backbone.init_cfg.checkpoint=work_dirs/CLASSIFIER/epoch_300.pth
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
        type='lape_mm.DeiT',
        arch='tiny',
        img_size=512,
        out_indices=(11, ),
        joining='default',
        drop_path_rate=0.1),
    decode_head=dict(
        type='SegmenterMaskTransformerHead',
        in_channels=192,
        channels=192,
        embed_dims=192,
        num_heads=3,
        num_layers=2,
        num_classes=150,
        drop_rate=0.1,
        attn_drop_rate=0.1,
        drop_path_rate=0.0,
        dropout_ratio=0.0,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    train_cfg=dict(),
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(512, 512)))
