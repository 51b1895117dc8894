_base_ = './upernet_vit-adapter-tiny-default_4xb2-80k_cityscapes-512x1024.py'

model = dict(backbone=dict(joining='mpvg'))
