# No official recipe trains Mask R-CNN on DINOv3, so this config uses the one for DINOv2.
_base_ = './mask-rcnn_vit-adapter-dinov2-small-default_fpn_8xb2-ms-3x_coco.py'

model = dict(
    backbone=dict(
        arch='dinov3_small',
        img_size=256,
        init_cfg=dict(
            checkpoint='{{$LAPE_MM_WEIGHTS:weights}}/dinov3_vits16_pretrain_lvd1689m-08c60483.pth')))
