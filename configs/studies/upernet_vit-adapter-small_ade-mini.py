# What does a grafted joining change? UperNet on ade_mini from a pre-trained ViT-S/14 in DINOv2's
# layout, which benchmarks/pretrained_vit.py downloads.
# See benchmarks/studies.py and docs/evidence.md.
_base_ = ['./upernet_vit-adapter_ade-mini.py']

crop_size = (224, 224)
max_iters = 300
init_cfg = dict(type='Pretrained', checkpoint='work_dirs/vit_small_patch14.pth')

model = dict(
    data_preprocessor=dict(size=crop_size),
    backbone=dict(
        _delete_=True,
        type='lape_mm.ViTAdapter',
        arch='dinov2_small',
        variant='segmentation',
        patch_size=16,
        img_size=592,  # 37 x 37 tokens, as pre-trained
        joining='default',
        drop_path_rate=0.1,
        init_cfg=init_cfg),
    decode_head=dict(in_channels=[384, 384, 384, 384], channels=128),
    auxiliary_head=dict(in_channels=384, channels=64))

train_pipeline = _base_.train_pipeline
train_pipeline[2].update(scale=(1024, 256))
train_pipeline[3].update(crop_size=crop_size)
test_pipeline = _base_.test_pipeline
test_pipeline[1].update(scale=(1024, 256))
train_dataloader = dict(batch_size=4, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

# ViT-Adapter's recipe for ADE20K with a higher rate, since the run is short
optim_wrapper = dict(
    optimizer=dict(lr=3e-4, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(layer_decay_rate=0.95))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-2, by_epoch=False, begin=0, end=30),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=30, end=max_iters)
]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
auto_scale_lr = dict(base_batch_size=4)
default_hooks = dict(checkpoint=dict(interval=max_iters))
