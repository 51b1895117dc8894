# PASCAL VOC 2012 with the additional masks of SBD, which mmseg's voc_aug.py converts:
# {root}/{JPEGImages,SegmentationClass,SegmentationClassAug,ImageSets/Segmentation}.
_base_ = './ade20k_512x512.py'

data_root = '{{$LAPE_MM_VOC:data/VOCdevkit/VOC2012}}'
train_dataloader = dict(
    batch_size=4,
    dataset=dict(
        _delete_=True,
        type='ConcatDataset',
        datasets=[
            dict(
                type='PascalVOCDataset',
                data_root=data_root,
                data_prefix=dict(img_path='JPEGImages', seg_map_path=masks),
                ann_file=f'ImageSets/Segmentation/{images}.txt',
                pipeline=_base_.train_pipeline)
            for masks, images in (('SegmentationClass', 'train'), ('SegmentationClassAug', 'aug'))
        ]))
val_dataloader = dict(
    dataset=dict(
        type='PascalVOCDataset',
        data_root=data_root,
        data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClass'),
        ann_file='ImageSets/Segmentation/val.txt'))
test_dataloader = val_dataloader
