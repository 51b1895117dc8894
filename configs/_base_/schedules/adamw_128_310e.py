# Compact-Transformers' schedule for a batch of 128, on one GPU, at a fixed rate.
#
# The official code changes the rate once an epoch and starts the cosine under the warm-up; here it
# changes every iteration, and the cosine starts where the warm-up ends. The official code trains
# in fp16: add --amp fp16 (or bf16).
optim_wrapper = dict(
    type='OptimWrapper',
    # biases and norms take no weight decay; position embedding and class token do, as officially
    constructor='lape_mm.LayerDecayOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=6e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.06),
    paramwise_cfg=dict(layer_decay_rate=1.0, decay_embeddings=True))

# from 1e-6 in 10 epochs, to 1e-5 after 300; the last 10, the cooldown, go on with that
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1 / 600,
        by_epoch=True,
        begin=0,
        end=10,
        convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-5,
        by_epoch=True,
        begin=10,
        end=300,
        convert_to_iter_based=True)
]

# images on the device: --cfg-options train_cfg.type=lape_mm.DeviceTrainLoop, see docs/cifar100.md
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=310, val_interval=1)
val_cfg = dict()
test_cfg = dict()

auto_scale_lr = dict(enable=False, base_batch_size=128)
