_base_ = [
    '../_base_/models/upernet_vit_adapter.py', '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/adamw_layer_decay_160k.py', '../_base_/runtime_seg.py'
]

# as in the official test, stretches sides to multiples of 32
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(2048, 512), keep_ratio=True),
    dict(type='ResizeToMultiple', size_divisor=32),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs')
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
