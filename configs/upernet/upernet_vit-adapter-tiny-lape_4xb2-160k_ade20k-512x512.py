# the MPVG paper's total batch, at the same learning rate
_base_ = './upernet_vit-adapter-tiny-lape_8xb2-160k_ade20k-512x512.py'

auto_scale_lr = dict(base_batch_size=8)
