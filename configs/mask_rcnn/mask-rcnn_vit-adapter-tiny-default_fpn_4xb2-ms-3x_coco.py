# the MPVG paper's total batch, at the same learning rate
_base_ = './mask-rcnn_vit-adapter-tiny-default_fpn_8xb2-ms-3x_coco.py'

auto_scale_lr = dict(base_batch_size=8)
