_base_ = [
    '../_base_/models/compact_cls.py', '../_base_/datasets/cifar10.py',
    '../_base_/schedules/adamw_128_310e.py', '../_base_/runtime_cls.py'
]

model = dict(
    data_preprocessor=dict(
        num_classes=10, mean=[125.307, 122.961, 113.8575], std=[62.985, 62.0925, 66.708]),
    head=dict(num_classes=10))
