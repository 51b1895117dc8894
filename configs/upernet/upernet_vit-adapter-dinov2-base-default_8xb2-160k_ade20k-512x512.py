_base_ = './upernet_vit-adapter-dinov2-small-default_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        arch='dinov2_base',
        drop_path_rate=0.3,
        init_cfg=dict(checkpoint='{{$LAPE_MM_WEIGHTS:weights}}/dinov2_vitb14_pretrain.pth')),
    decode_head=dict(in_channels=[768, 768, 768, 768]),
    auxiliary_head=dict(in_channels=768))
