_base_ = './segmenter_deit-tiny-default_mask_8xb1-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(arch='small'),
    decode_head=dict(in_channels=384, channels=384, embed_dims=384, num_heads=6))
