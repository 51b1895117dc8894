# Mask2Former's schedule in whole epochs; in mmdet the rate falls at epochs 44.4 and 48.1 of 50. The
# layer decay is that of ViT-Adapter's Mask2Former.
_base_ = [
    '../_base_/models/mask2former_vit_adapter.py', '../_base_/datasets/coco_instance_lsj.py',
    '../_base_/schedules/adamw_3x.py', '../_base_/runtime_det.py'
]

optim_wrapper = dict(
    constructor='lape_mm.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(_delete_=True, layer_decay_rate=0.9),
    clip_grad=dict(max_norm=0.01))
param_scheduler = [
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=50, milestones=[44, 48], gamma=0.1)
]
train_cfg = dict(max_epochs=50)
default_hooks = dict(checkpoint=dict(save_best='coco/segm_mAP'))
