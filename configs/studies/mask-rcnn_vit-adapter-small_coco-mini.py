# Mask R-CNN that finds people on coco_mini, from the ViT of upernet_vit-adapter-small_ade-mini.py.
# See benchmarks/studies.py and docs/evidence.md.
_base_ = ['./mask-rcnn_vit-adapter_coco-mini.py']

image_size = (224, 224)
max_epochs = 12
init_cfg = dict(type='Pretrained', checkpoint='work_dirs/vit_small_patch14.pth')

model = dict(
    backbone=dict(
        _delete_=True,
        type='lape_mm.ViTAdapter',
        arch='dinov2_small',
        variant='detection',
        patch_size=16,
        img_size=592,
        joining='default',
        drop_path_rate=0.1,
        init_cfg=init_cfg),
    neck=dict(in_channels=[384, 384, 384, 384]))

train_pipeline = _base_.train_pipeline
train_pipeline[2].update(scale=image_size)
test_pipeline = _base_.test_pipeline
test_pipeline[1].update(scale=image_size)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

optim_wrapper = dict(optimizer=dict(lr=3e-4))
train_cfg = dict(max_epochs=max_epochs, val_interval=max_epochs)
param_scheduler = _base_.param_scheduler
param_scheduler[1].update(end=max_epochs)
default_hooks = dict(checkpoint=dict(interval=max_epochs))
