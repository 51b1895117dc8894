_base_ = './upernet_vit-adapter-tiny-default_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(arch='base', drop_path_rate=0.3),
    decode_head=dict(in_channels=[768, 768, 768, 768]),
    auxiliary_head=dict(in_channels=768))
optim_wrapper = dict(optimizer=dict(lr=6e-5))  # officially half of the tiny model's
