_base_ = './mask2former_vit-adapter-tiny-default_8xb2-160k_ade20k-512x512.py'

model = dict(backbone=dict(joining='mpvg'))
