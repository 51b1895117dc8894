_base_ = './mask-rcnn_vit-adapter-dinov2-small-default_fpn_8xb2-ms-3x_coco.py'

model = dict(
    backbone=dict(
        arch='dinov2_base',
        drop_path_rate=0.3,
        init_cfg=dict(checkpoint='{{$LAPE_MM_WEIGHTS:weights}}/dinov2_vitb14_pretrain.pth')),
    neck=dict(in_channels=[768, 768, 768, 768]))
