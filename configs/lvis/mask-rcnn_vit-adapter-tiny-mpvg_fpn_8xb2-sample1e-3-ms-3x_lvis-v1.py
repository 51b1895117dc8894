_base_ = './mask-rcnn_vit-adapter-tiny-default_fpn_8xb2-sample1e-3-ms-3x_lvis-v1.py'

model = dict(backbone=dict(joining='mpvg'))
