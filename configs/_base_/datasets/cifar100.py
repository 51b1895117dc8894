# CIFAR-100 as in Compact-Transformers, read by mmpretrain's own data set class from
# {root}/cifar-100-python/{train,test}. A run downloads nothing; to fetch the files once:
#   python -c "from torchvision.datasets import CIFAR100; CIFAR100('data/cifar100', download=True)"
data_root = '{{$LAPE_MM_CIFAR100:data/cifar100}}'
bgr_mean = [112.404, 124.1085, 129.3105]
bgr_std = [70.4055, 65.4075, 68.2125]

crop = dict(type='RandomResizedCrop', scale=32, crop_ratio_range=(0.8, 1.0), backend='pillow')
# CIFAR's images are RGB, but RandAugment computes grey from BGR: convert to BGR and back
train_pipeline = [
    dict(type='NumpyToPIL', to_rgb=True),
    dict(type='PILToNumpy'),
    # timm's 'random' interpolation
    dict(
        type='RandomChoice',
        transforms=[[dict(crop, interpolation='bilinear')], [dict(crop, interpolation='bicubic')]]),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    # rand-m9-mstd0.5-inc1
    dict(
        type='RandAugment',
        policies='timm_increasing',
        num_policies=2,
        magnitude_level=9,
        magnitude_std=0.5,
        total_level=10,
        hparams=dict(pad_val=[112, 124, 129], interpolation='bicubic')),
    # as timm's 'pixel' mode: standard normal noise after normalisation
    dict(
        type='RandomErasing',
        erase_prob=0.25,
        mode='rand',
        min_area_ratio=0.02,
        max_area_ratio=1 / 3,
        fill_color=bgr_mean,
        fill_std=bgr_std),
    dict(type='NumpyToPIL', to_rgb=True),
    dict(type='PILToNumpy'),
    dict(type='PackInputs')
]
test_pipeline = [dict(type='PackInputs')]

train_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    # 390 batches per epoch, as in timm's loader
    drop_last=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CIFAR100',
        data_root=data_root,
        split='train',
        download=False,
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=256,
    num_workers=2,
    persistent_workers=True,
    pin_memory=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CIFAR100',
        data_root=data_root,
        split='test',
        test_mode=True,
        download=False,
        pipeline=test_pipeline))
test_dataloader = val_dataloader

val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_evaluator = val_evaluator
