_base_ = './mask2former_vit-adapter-tiny-default_8xb2-lsj-50e_coco.py'

model = dict(backbone=dict(joining='mpvg'))
