_base_ = './segmenter_deit-small-default_mask_8xb1-160k_ade20k-512x512.py'

model = dict(backbone=dict(joining='mpvg'))
