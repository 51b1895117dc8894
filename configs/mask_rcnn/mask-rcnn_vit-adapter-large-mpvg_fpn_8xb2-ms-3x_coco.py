_base_ = './mask-rcnn_vit-adapter-large-default_fpn_8xb2-ms-3x_coco.py'

model = dict(backbone=dict(joining='mpvg'))
