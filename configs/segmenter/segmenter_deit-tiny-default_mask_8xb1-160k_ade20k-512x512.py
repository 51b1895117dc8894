_base_ = [
    '../_base_/models/segmenter_deit_mask.py', '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/sgd_160k.py', '../_base_/runtime_seg.py'
]

train_dataloader = dict(batch_size=1)
