# Mask2Former for semantic segmentation on ViT-Adapter-Ti: the same head, in mmseg's class.
_base_ = './mask2former_vit_adapter.py'

crop_size = (512, 512)
num_classes = 150
head = dict(_base_.model.panoptic_head)
for key in ('num_things_classes', 'num_stuff_classes'):
    head.pop(key)
head.update(
    num_classes=num_classes,
    align_corners=False,
    loss_cls=dict(head['loss_cls'], class_weight=[1.0] * num_classes + [0.1]),
    train_cfg=_base_.model.train_cfg)
model = dict(
    _delete_=True,
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=crop_size),
    backbone=dict(_base_.model.backbone, variant='segmentation'),
    decode_head=head,
    train_cfg=dict(),
    test_cfg=dict(mode='slide', crop_size=crop_size, stride=(341, 341)))
del head, key
