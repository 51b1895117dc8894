_base_ = [
    '../_base_/models/compact_cls.py', '../_base_/datasets/cifar100.py',
    '../_base_/schedules/adamw_128_310e.py', '../_base_/runtime_cls.py'
]
