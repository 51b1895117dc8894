# The built-in data set in ADE20K's layout: tools/train.py and tools/test.py draw it once, into
# {root}/{images,annotations}/{training,validation}, before a run starts.
#
# For your own folders pass --data FOLDER.
data_root = '{{$LAPE_MM_SCENES:data/scenes}}/ade'
image_size = (128, 128)
scenes = dict(
    layout='ade',
    root=data_root,
    image_size=image_size,
    num_train=2400,
    num_val=80,
    seed=0)

dataset_type = 'BaseSegDataset'
metainfo = dict(
    classes=('disc', 'square', 'triangle', 'star', 'ring', 'cross', 'ground', 'sky'),
    palette=[(220, 20, 60), (0, 130, 255), (255, 180, 0), (0, 200, 90), (170, 60, 230),
             (0, 215, 215), (120, 90, 60), (200, 225, 250)])

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs')
]
# the scenes have the size that the model needs: nothing is resized
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')
]

train_dataloader = dict(
    batch_size=8,
    num_workers=0,  # the model needs both cores
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(
            img_path='images/training', seg_map_path='annotations/training'),
        metainfo=metainfo,
        reduce_zero_label=True,
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(
            img_path='images/validation', seg_map_path='annotations/validation'),
        metainfo=metainfo,
        reduce_zero_label=True,
        pipeline=test_pipeline))
test_dataloader = val_dataloader

val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
