# ViT-Adapter-L with the rates of the official config, which starts from AugReg's ViT-L.
_base_ = './mask-rcnn_vit-adapter-tiny-default_fpn_8xb2-ms-3x_coco.py'

model = dict(
    backbone=dict(arch='large', drop_path_rate=0.4),
    neck=dict(in_channels=[1024, 1024, 1024, 1024]))
optim_wrapper = dict(
    constructor='lape_mm.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(_delete_=True, layer_decay_rate=0.8))
