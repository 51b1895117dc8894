# DINOv2's ViT-S/14 with patches resampled to 16 x 16. No official recipe trains UperNet on it, so
# this config uses the schedule of ViT-Adapter's small model.
_base_ = './upernet_vit-adapter-small-default_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        arch='dinov2_small',
        patch_size=16,
        img_size=592,  # 37 x 37 tokens, as pre-trained
        init_cfg=dict(
            checkpoint='{{$LAPE_MM_WEIGHTS:weights}}/dinov2_vits14_pretrain.pth')))
