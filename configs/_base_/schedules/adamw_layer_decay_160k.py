# ViT-Adapter's segmentation schedule: AdamW with a rate that decays by 0.95 from layer to layer.
optim_wrapper = dict(
    type='OptimWrapper',
    constructor='lape_mm.LayerDecayOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=12e-5, betas=(0.9, 0.999), weight_decay=0.01),
    # the official constructor overlooks the embeddings' prefixed names, and so decays them
    paramwise_cfg=dict(layer_decay_rate=0.95, decay_embeddings=True))

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=1500, end=160000)
]

train_cfg = dict(type='IterBasedTrainLoop', max_iters=160000, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

auto_scale_lr = dict(enable=False, base_batch_size=16)
