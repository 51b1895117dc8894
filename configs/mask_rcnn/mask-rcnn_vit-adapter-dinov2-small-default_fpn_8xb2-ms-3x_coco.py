# DINOv2's ViT-S/14 with patches resampled to 16 x 16: the recipe of ViT-Adapter's config,
# https://github.com/czczup/ViT-Adapter/tree/main/detection/configs/mask_rcnn/dinov2
_base_ = './mask-rcnn_vit-adapter-small-default_fpn_8xb2-ms-3x_coco.py'

model = dict(
    backbone=dict(
        arch='dinov2_small',
        patch_size=16,
        img_size=592,  # 37 x 37 tokens, as pre-trained
        init_cfg=dict(
            checkpoint='{{$LAPE_MM_WEIGHTS:weights}}/dinov2_vits14_pretrain.pth')))
optim_wrapper = dict(
    constructor='lape_mm.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(_delete_=True, layer_decay_rate=0.7))
