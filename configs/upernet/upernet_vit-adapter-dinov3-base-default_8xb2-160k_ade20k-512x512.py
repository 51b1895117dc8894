_base_ = './upernet_vit-adapter-dinov2-base-default_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        arch='dinov3_base',
        img_size=256,
        init_cfg=dict(
            checkpoint='{{$LAPE_MM_WEIGHTS:weights}}/dinov3_vitb16_pretrain_lvd1689m-73cec8be.pth')))
