# LVIS v1 on COCO's images: {root}/{train2017,val2017} and {root}/annotations/lvis_v1_*.json.
# Its data set and metric need `pip install lvis`.
_base_ = './coco_instance_ms.py'

data_root = '{{$LAPE_MM_LVIS:data/lvis_v1}}'
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='ClassBalancedDataset',  # repeats images of rare classes
        oversample_thr=1e-3,
        dataset=dict(
            type='LVISV1Dataset',
            data_root=data_root,
            ann_file='annotations/lvis_v1_train.json',
            data_prefix=dict(img=''),
            filter_cfg=dict(filter_empty_gt=True, min_size=32),
            pipeline=_base_.train_pipeline)))
val_dataloader = dict(
    dataset=dict(
        type='LVISV1Dataset',
        data_root=data_root,
        ann_file='annotations/lvis_v1_val.json',
        data_prefix=dict(img='')))
test_dataloader = val_dataloader

val_evaluator = dict(type='LVISMetric', ann_file=data_root + '/annotations/lvis_v1_val.json')
test_evaluator = val_evaluator
