_base_ = './mask-rcnn_vit-adapter-tiny-default_fpn_8xb2-ms-3x_coco.py'

model = dict(
    backbone=dict(arch='small', drop_path_rate=0.2),
    neck=dict(in_channels=[384, 384, 384, 384]))
