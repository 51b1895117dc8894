_base_ = './upernet_vit-adapter-tiny-default_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(arch='small', drop_path_rate=0.2),
    decode_head=dict(in_channels=[384, 384, 384, 384]),
    auxiliary_head=dict(in_channels=384))
optim_wrapper = dict(optimizer=dict(lr=6e-5))  # officially half of the tiny model's
