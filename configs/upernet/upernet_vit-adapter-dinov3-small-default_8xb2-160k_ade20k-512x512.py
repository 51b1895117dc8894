# No official recipe trains UperNet on DINOv3; the schedule is that of ViT-Adapter's small model.
_base_ = './upernet_vit-adapter-dinov2-small-default_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        arch='dinov3_small',
        img_size=256,
        init_cfg=dict(
            checkpoint='{{$LAPE_MM_WEIGHTS:weights}}/dinov3_vits16_pretrain_lvd1689m-08c60483.pth')))
