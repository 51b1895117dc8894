# UperNet on a small ViT-Adapter, trained from scratch on scenes that the package draws itself.
#
#   python tools/train.py configs/quickstart/upernet.py --joining lape
_base_ = [
    '../_base_/models/upernet_vit_adapter.py', './_base_/scenes_ade.py', '../_base_/runtime_seg.py'
]

image_size = (128, 128)  # the size of the scenes
max_iters = 700

# the differences from the model in _base_
model = dict(
    data_preprocessor=dict(size=image_size),
    backbone=dict(
        arch=dict(
            _delete_=True,
            embed_dim=96, depth=4, num_heads=3, conv_inplane=32, deform_num_heads=3,
            deform_ratio=0.5),
        img_size=image_size,
        joining='mpvg',  # default, share, unshare, lape, pvg or mpvg; set nowhere else
        drop_path_rate=0.),
    decode_head=dict(
        in_channels=[96, 96, 96, 96],
        channels=48,
        dropout_ratio=0.,
        num_classes=8,
        loss_decode=dict(avg_non_ignore=True)),
    auxiliary_head=dict(
        in_channels=96,
        channels=32,
        dropout_ratio=0.,
        num_classes=8,
        loss_decode=dict(avg_non_ignore=True)),
    # no sliding windows: the images are no larger than the position embedding
    test_cfg=dict(_delete_=True, mode='whole'))

optim_wrapper = dict(
    type='OptimWrapper',
    constructor='lape_mm.LayerDecayOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=5e-3, betas=(0.9, 0.98), weight_decay=0.05),
    paramwise_cfg=dict(layer_decay_rate=1.0),
    clip_grad=dict(max_norm=1.0))

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-2, by_epoch=False, begin=0, end=70),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=70, end=max_iters)
]

train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

auto_scale_lr = dict(enable=False, base_batch_size=8)

default_hooks = dict(
    checkpoint=dict(interval=max_iters),
    # draws every 8th picture, ground truth on the left and prediction on the right
    visualization=dict(draw=True, interval=8))
randomness = dict(seed=0)
