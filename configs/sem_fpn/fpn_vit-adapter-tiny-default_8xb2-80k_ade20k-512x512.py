# PVT's learning rates for Semantic FPN, as in ViT-Adapter.
_base_ = [
    '../_base_/models/fpn_vit_adapter.py', '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/adamw_layer_decay_160k.py', '../_base_/runtime_seg.py'
]

optim_wrapper = dict(
    optimizer=dict(lr=1e-4, weight_decay=1e-4),
    paramwise_cfg=dict(layer_decay_rate=1.0, decay_embeddings=False))
param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False, begin=0, end=80000)
]
train_cfg = dict(max_iters=80000, val_interval=8000)
default_hooks = dict(checkpoint=dict(interval=8000))
