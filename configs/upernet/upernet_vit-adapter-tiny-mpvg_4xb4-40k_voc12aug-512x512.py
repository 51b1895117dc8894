_base_ = './upernet_vit-adapter-tiny-default_4xb4-40k_voc12aug-512x512.py'

model = dict(backbone=dict(joining='mpvg'))
