_base_ = './upernet_vit-adapter-large-default_8xb2-160k_ade20k-512x512.py'

model = dict(backbone=dict(joining='mpvg'))
