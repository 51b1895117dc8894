# MAE's ViT-B with the optimizer, drop path and scales of ViT-Adapter's config,
# https://github.com/czczup/ViT-Adapter/tree/main/detection/configs/upgraded_mask_rcnn
# but that config trains another Mask R-CNN (more convolutions, BatchNorm) with large-scale jitter.
_base_ = './mask-rcnn_vit-adapter-base-default_fpn_8xb2-ms-3x_coco.py'

model = dict(
    backbone=dict(
        arch='mae_base',
        layer_scale=False,
        drop_path_rate=0.1,
        init_cfg=dict(checkpoint='{{$LAPE_MM_WEIGHTS:weights}}/mae_pretrain_vit_base.pth')))
