# Compact-Transformers' schedule for a batch of 128, on one GPU, at a fixed rate.
#
# The official code changes the rate once an epoch and starts the cosine under the warm-up; here it
# changes every iteration, and the cosine starts where the warm-up ends. The official code trains
# in fp16: add --amp fp16 (or bf16).
_base_ = './adamw_1024_300e.py'

# biases and norms take no weight decay; position embedding and class token do, as officially
optim_wrapper = dict(
    optimizer=dict(lr=6e-4, weight_decay=0.06), paramwise_cfg=dict(decay_embeddings=True))

# from 1e-6 in 10 epochs, to 1e-5 after 300; the last 10, the cooldown, go on with that
param_scheduler = _base_.param_scheduler
param_scheduler[0].update(start_factor=1 / 600, end=10)
param_scheduler[1]['begin'] = 10

train_cfg = dict(max_epochs=310, val_interval=1)
auto_scale_lr = dict(base_batch_size=128)
