_base_ = './fpn_vit-adapter-tiny-default_8xb2-80k_ade20k-512x512.py'

model = dict(backbone=dict(joining='mpvg'))
