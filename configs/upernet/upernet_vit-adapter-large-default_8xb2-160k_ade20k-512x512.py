# ViT-Adapter-L with the rates of the official config, which starts from AugReg's ViT-L.
_base_ = './upernet_vit-adapter-tiny-default_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(arch='large', drop_path_rate=0.4, with_cp=True),
    decode_head=dict(in_channels=[1024, 1024, 1024, 1024]),
    auxiliary_head=dict(in_channels=1024))
optim_wrapper = dict(optimizer=dict(lr=2e-5, weight_decay=0.05))
