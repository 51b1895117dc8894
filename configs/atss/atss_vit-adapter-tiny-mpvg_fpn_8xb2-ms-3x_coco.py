_base_ = './atss_vit-adapter-tiny-default_fpn_8xb2-ms-3x_coco.py'

model = dict(backbone=dict(joining='mpvg'))
