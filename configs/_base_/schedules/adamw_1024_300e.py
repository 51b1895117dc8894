# DeiT's schedule for a total batch of 1024.
#
# The learning rate is 1e-3. Table 7 of the MPVG paper prints DeiT's argument, 5e-4, which DeiT's
# code (and LaPE's, which the paper builds on) multiplies by batch / 512. Both codes change the
# rate once per epoch, and their cosine starts during the warm-up. Here the rate changes every
# iteration, and the cosine starts when the warm-up ends.
optim_wrapper = dict(
    type='OptimWrapper',
    # biases, norms, position embedding and class token take no weight decay
    constructor='lape_mm.LayerDecayOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05),
    paramwise_cfg=dict(layer_decay_rate=1.0))

param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-3,
        by_epoch=True,
        begin=0,
        end=5,
        convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-5,
        by_epoch=True,
        begin=5,
        end=300,
        convert_to_iter_based=True)
]

train_cfg = dict(by_epoch=True, max_epochs=300, val_interval=1)
val_cfg = dict()
test_cfg = dict()

auto_scale_lr = dict(enable=False, base_batch_size=1024)
