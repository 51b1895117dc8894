# A small UperNet with ViT-Adapter on ade_mini: 180 street scenes, almost all CamVid, in ADE20K's
# layout and ids. From scratch, or from a run of deit_imagenet-mini.py, whose ViT has the same
# sizes:
#   --cfg-options model.backbone.init_cfg.checkpoint=...
# See benchmarks/studies.py and docs/evidence.md.
_base_ = ['../quickstart/upernet.py']

scenes = None
data_root = '{{$LAPE_MM_ADE20K:data/ade/ADEChallengeData2016}}'
crop_size = (96, 96)  # as in the classification model
max_iters = 150

model = dict(
    data_preprocessor=dict(size=crop_size),
    backbone=dict(
        arch=dict(depth=6),
        interaction_indexes=[(0, 0), (1, 2), (3, 4), (5, 5)],
        img_size=crop_size,
        joining='default'),
    decode_head=dict(num_classes=150),
    auxiliary_head=dict(num_classes=150))

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(512, 128), ratio_range=(1.0, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs')
]
# whole images of about 170 x 128 pixels, for which PE is resized
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(512, 128), keep_ratio=True),
    # after Resize, so that the ground truth keeps the image's own size
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')
]
train_dataloader = dict(
    dataset=dict(
        type='ADE20KDataset', data_root=data_root, metainfo=None, pipeline=train_pipeline))
val_dataloader = dict(
    dataset=dict(
        type='ADE20KDataset', data_root=data_root, metainfo=None, pipeline=test_pipeline))
test_dataloader = val_dataloader

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-2, by_epoch=False, begin=0, end=15),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=15, end=max_iters)
]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(optimizer=dict(lr=2e-3))

default_hooks = dict(
    checkpoint=dict(interval=max_iters, max_keep_ckpts=1, save_best=None),
    visualization=dict(draw=False))
