# Compact-Transformers' schedule for a batch of 128, on one GPU.
#
# The official code changes the rate once per epoch, and its cosine starts during the warm-up. Here
# the rate changes every iteration, and the cosine starts when the warm-up ends. The official code
# trains in fp16; for that add --amp fp16 (or bf16).
_base_ = './adamw_1024_300e.py'

# no weight decay for biases and norms; position embedding and class token decay, as officially
optim_wrapper = dict(
    optimizer=dict(lr=6e-4, weight_decay=0.06), paramwise_cfg=dict(decay_embeddings=True))

# the rate starts at 1e-6, warms up for 10 epochs, falls to 1e-5 at 300, and stays there (cooldown)
param_scheduler = _base_.param_scheduler
param_scheduler[0].update(start_factor=1 / 600, end=10)
param_scheduler[1]['begin'] = 10

train_cfg = dict(max_epochs=310, val_interval=1)
auto_scale_lr = dict(base_batch_size=128)
