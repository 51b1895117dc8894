# ViT-Adapter's detection schedule: 36 epochs, AdamW 1e-4, no warm-up beyond 500 iterations.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    # no weight decay for names that contain one of these; 'norm' includes the position embedding's
    # norms. Layer-scale gammas and the stem's BatchNorm are decayed, as officially
    paramwise_cfg=dict(
        custom_keys=dict(
            level_embed=dict(decay_mult=0.),
            pos_embed=dict(decay_mult=0.),
            norm=dict(decay_mult=0.),
            bias=dict(decay_mult=0.))))

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=36, milestones=[27, 33], gamma=0.1)
]

train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=36, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

auto_scale_lr = dict(enable=False, base_batch_size=16)
