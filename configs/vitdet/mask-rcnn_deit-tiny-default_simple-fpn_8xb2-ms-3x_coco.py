# ViTDet around DeiT-Ti: windows of 14 x 14 tokens in eight of twelve layers, and a pyramid of the
# last map. Heads and schedule are those of Mask R-CNN with ViT-Adapter, for comparison;
# ViTDet's own are larger: more convolutions, large-scale jitter, 100 epochs, a batch of 64.
_base_ = '../mask_rcnn/mask-rcnn_vit-adapter-tiny-default_fpn_8xb2-ms-3x_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='lape_mm.DeiT',
        arch='tiny',
        img_size=224,
        out_indices=(11, ),
        window_size=14,
        joining='default',
        drop_path_rate=0.1),
    neck=dict(
        _delete_=True, type='lape_mm.SimpleFPN', in_channels=192, out_channels=256, num_outs=5))
