# MAE's ViT-B with its own rates for UperNet, as in
# https://github.com/open-mmlab/mmsegmentation/tree/main/configs/mae
_base_ = './upernet_vit-adapter-base-default_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        arch='mae_base',
        drop_path_rate=0.1,
        init_cfg=dict(checkpoint='{{$LAPE_MM_WEIGHTS:weights}}/mae_pretrain_vit_base.pth')))
optim_wrapper = dict(
    optimizer=dict(lr=1e-4, weight_decay=0.05), paramwise_cfg=dict(layer_decay_rate=0.65))
