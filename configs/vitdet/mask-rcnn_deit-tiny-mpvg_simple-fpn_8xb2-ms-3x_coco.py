_base_ = './mask-rcnn_deit-tiny-default_simple-fpn_8xb2-ms-3x_coco.py'

model = dict(backbone=dict(joining='mpvg'))
