# T2T-ViT-7 with table 7 of the MPVG paper and T2T-ViT's own recipe. It ends with ten epochs at the
# lowest rate, evaluates with crop ratio 0.9, and uses no repeated augmentation. The official code
# picks bilinear or bicubic at random for each image; here it is bicubic throughout.
_base_ = [
    '../_base_/models/deit_cls.py', '../_base_/datasets/imagenet.py',
    '../_base_/schedules/adamw_1024_300e.py', '../_base_/runtime_cls.py'
]

model = dict(
    backbone=dict(type='lape_mm.T2TViT', arch='7'), head=dict(in_channels=256))

train_dataloader = dict(
    batch_size=64, sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True))
test_pipeline = _base_.test_pipeline
test_pipeline[1]['scale'] = 248
val_dataloader = dict(batch_size=64, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

optim_wrapper = dict(optimizer=dict(lr=1e-3, weight_decay=0.03))
param_scheduler = _base_.param_scheduler
param_scheduler[0]['end'] = param_scheduler[1]['begin'] = 10  # epochs of warm-up
train_cfg = dict(max_epochs=310)
auto_scale_lr = dict(base_batch_size=512)
