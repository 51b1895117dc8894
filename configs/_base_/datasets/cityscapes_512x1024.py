# Cityscapes: {root}/{leftImg8bit,gtFine}/{train,val}, label maps made by mmseg's converter.
_base_ = './ade20k_512x512.py'

data_root = '{{$LAPE_MM_CITYSCAPES:data/cityscapes}}'
train_pipeline = _base_.train_pipeline
train_pipeline[2]['scale'] = (2048, 1024)
train_pipeline[3]['crop_size'] = (512, 1024)
test_pipeline = _base_.test_pipeline
test_pipeline[1]['scale'] = (2048, 1024)
train_dataloader = dict(
    dataset=dict(
        type='CityscapesDataset',
        data_root=data_root,
        data_prefix=dict(img_path='leftImg8bit/train', seg_map_path='gtFine/train'),
        pipeline=train_pipeline))
val_dataloader = dict(
    dataset=dict(
        type='CityscapesDataset',
        data_root=data_root,
        data_prefix=dict(img_path='leftImg8bit/val', seg_map_path='gtFine/val'),
        pipeline=test_pipeline))
test_dataloader = val_dataloader
