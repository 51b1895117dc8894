# mmseg's learning rates and clipping, with the layer decay of ViT-Adapter's Mask2Former.
_base_ = [
    '../_base_/models/mask2former_vit_adapter_seg.py', '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/adamw_layer_decay_160k.py', '../_base_/runtime_seg.py'
]

optim_wrapper = dict(
    optimizer=dict(lr=1e-4, weight_decay=0.05),
    paramwise_cfg=dict(layer_decay_rate=0.9, decay_embeddings=False),
    clip_grad=dict(max_norm=0.01))
param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False, begin=0, end=160000)
]
