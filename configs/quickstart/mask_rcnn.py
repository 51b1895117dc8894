# Mask R-CNN with a small ViT-Adapter, from scratch on scenes that the package draws itself: about
# five minutes on two CPU cores.
#
# The model is that of configs/mask_rcnn, cut down for two cores. For your own data
# pass --data FOLDER; for COCO itself see configs/mask_rcnn.
_base_ = ['../_base_/models/mask_rcnn_vit_adapter_fpn.py', '../_base_/runtime_det.py']

data_root = '{{$LAPE_MM_SCENES:data/scenes}}/coco'
metainfo = dict(
    classes=('disc', 'square', 'triangle', 'star', 'ring', 'cross'),
    palette=[(220, 20, 60), (0, 130, 255), (255, 180, 0), (0, 200, 90), (170, 60, 230),
             (0, 215, 215)])
image_size = (128, 128)
# drawn once, by tools/train.py and tools/test.py, before the run starts
scenes = dict(
    layout='coco', root=data_root, image_size=image_size, num_train=800, num_val=80, seed=0)

# the differences from the model in _base_
model = dict(
    backbone=dict(
        arch=dict(
            _delete_=True,
            # the ViT of quickstart/deit.py, whose checkpoint therefore fits
            embed_dim=96,
            depth=6,
            num_heads=3,
            # the adapter around it
            conv_inplane=24,
            deform_num_heads=3,
            deform_ratio=0.5),
        img_size=image_size,
        # 8 x 8 tokens per image: four windows, and global attention at the end of each interaction
        windows=[4, 4, None, 4, 4, None],
        interaction_indexes=[(0, 2), (3, 5)],
        joining='mpvg',
        # MPVG always has a LayerNorm after the last layer; other joinings learn faster with one
        last_norm=True,
        drop_path_rate=0.),
    # BatchNorm speeds up the start, since nothing is pre-trained
    neck=dict(
        in_channels=[96, 96, 96, 96], out_channels=48, norm_cfg=dict(type='BN'), num_outs=4),
    rpn_head=dict(
        in_channels=48,
        feat_channels=48,
        # sides of 16 to 128 pixels: objects are 28 to 77 pixels wide
        anchor_generator=dict(scales=[4], strides=[4, 8, 16, 32])),
    roi_head=dict(
        bbox_roi_extractor=dict(
            roi_layer=dict(sampling_ratio=1),
            out_channels=48,
            # RoIs from twice this side on use the map of stride 8; the usual 56 is meant for
            # images of 800 pixels
            finest_scale=28),
        # class-agnostic boxes and masks learn from every object
        bbox_head=dict(
            in_channels=48, fc_out_channels=192, num_classes=6, reg_class_agnostic=True),
        mask_roi_extractor=dict(roi_layer=dict(sampling_ratio=1), out_channels=48),
        mask_head=dict(
            num_convs=2,
            in_channels=48,
            conv_out_channels=32,
            num_classes=6,
            class_agnostic=True)),
    # fewer anchors, proposals and RoIs are enough for one to four objects per image
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=32))),
    test_cfg=dict(
        rpn=dict(nms_pre=200, max_per_img=50),
        rcnn=dict(max_per_img=20)))

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    # the scenes have this size already
    dict(type='Resize', scale=image_size, keep_ratio=True),
    dict(type='RandomFlip', prob=0.75, direction=['horizontal', 'vertical', 'diagonal']),
    dict(type='PackDetInputs')
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=image_size, keep_ratio=True),
    # after Resize, so that the ground truth keeps the image's own size
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
]

# no workers: an image of this size is read in a millisecond
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CocoDataset',
        data_root=data_root,
        ann_file='annotations/instances_train2017.json',
        data_prefix=dict(img='train2017/'),
        metainfo=metainfo,
        filter_cfg=dict(filter_empty_gt=True, min_size=32),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset',
        data_root=data_root,
        ann_file='annotations/instances_val2017.json',
        data_prefix=dict(img='val2017/'),
        metainfo=metainfo,
        test_mode=True,
        pipeline=test_pipeline))
test_dataloader = val_dataloader

val_evaluator = dict(
    type='CocoMetric',
    ann_file=data_root + '/annotations/instances_val2017.json',
    metric=['bbox', 'segm'])
test_evaluator = val_evaluator

max_epochs = 6
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=max_epochs)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    # biases, norms and position embedding take no weight decay
    constructor='lape_mm.LayerDecayOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(layer_decay_rate=1.0),
    clip_grad=dict(max_norm=5.0))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=0.01,
        by_epoch=True,
        begin=0,
        end=1,
        convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-5,
        by_epoch=True,
        begin=1,
        end=max_epochs,
        convert_to_iter_based=True)
]
auto_scale_lr = dict(enable=False, base_batch_size=8)

default_hooks = dict(
    logger=dict(interval=25),
    checkpoint=dict(interval=max_epochs, max_keep_ckpts=1, save_best=None),
    # draws the first image of each of the ten validation batches, ground truth on the left
    visualization=dict(draw=True, interval=1, score_thr=0.5))
randomness = dict(seed=0)
