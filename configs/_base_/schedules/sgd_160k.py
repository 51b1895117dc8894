# Segmenter's schedule: SGD with a polynomial rate; its 64 epochs of batch 8 are 160k iterations.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=1e-3, momentum=0.9, weight_decay=0.0))

param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=1e-5, by_epoch=False, begin=0, end=160000)
]

train_cfg = dict(type='IterBasedTrainLoop', max_iters=160000, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

auto_scale_lr = dict(enable=False, base_batch_size=8)
