# Segmenter with a small DeiT and the mask transformer, trained from scratch on scenes that the
# package draws itself.
#
#   python tools/train.py configs/quickstart/segmenter.py --joining lape
_base_ = [
    '../_base_/models/segmenter_deit_mask.py', './_base_/scenes_ade.py', '../_base_/runtime_seg.py'
]

# half the side of the scenes, and half the usual side of patches: as many tokens, in a third of the
# time per iteration
image_size = (64, 64)
max_iters = 3200

# the differences from the model in _base_
model = dict(
    data_preprocessor=dict(size=image_size),
    backbone=dict(
        arch=dict(_delete_=True, embed_dim=96, depth=4, num_heads=3),
        img_size=image_size,
        patch_size=8,
        # gives locality from the start; a learned embedding takes longer than a few minutes
        position='sincos_2d',
        out_indices=(3, ),  # the last layer's map, after the last LayerNorm
        joining='mpvg',  # default, share, unshare, lape, pvg or mpvg; set nowhere else
        drop_path_rate=0.),
    decode_head=dict(
        in_channels=96,
        channels=96,
        embed_dims=96,
        num_layers=1,
        num_classes=8,
        # no dropout when training from scratch
        drop_rate=0.,
        attn_drop_rate=0.,
        loss_decode=dict(avg_non_ignore=True)),
    # no sliding windows: the images are no larger than the position embedding
    test_cfg=dict(_delete_=True, mode='whole'))

# Segmenter's own recipe, SGD, is for ImageNet weights. Here nothing is pre-trained, and a plain ViT
# needs AdamW to train from scratch.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-3, betas=(0.9, 0.98), weight_decay=0.05),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        custom_keys={
            'pos_embed': dict(decay_mult=0.0),
            'cls_token': dict(decay_mult=0.0),
            'cls_emb': dict(decay_mult=0.0),
            # a LayerNorm over the classes bounds the logits until its scale has grown
            'mask_norm': dict(lr_mult=10.0, decay_mult=0.0)
        }),
    clip_grad=dict(max_norm=1.0))

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-2, by_epoch=False, begin=0, end=200),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=200, end=max_iters)
]

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='Resize', scale=image_size),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=image_size),
    # after Resize, so that the ground truth keeps the scenes' own size
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')
]
train_dataloader = dict(batch_size=16, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

auto_scale_lr = dict(enable=False, base_batch_size=16)

default_hooks = dict(
    checkpoint=dict(interval=max_iters),
    # draws every 8th picture, ground truth on the left and prediction on the right
    visualization=dict(draw=True, interval=8))
randomness = dict(seed=0)
