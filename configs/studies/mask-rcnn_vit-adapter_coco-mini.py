# A small Mask R-CNN with ViT-Adapter that finds people on coco_mini. People are in 52 of its 107
# training images, every other class in 21 or fewer. From scratch, or from a run of
# deit_imagenet-mini.py, whose ViT has the same sizes:
#   --cfg-options model.backbone.init_cfg.checkpoint=...
# See benchmarks/studies.py and docs/evidence.md.
_base_ = ['../quickstart/mask_rcnn.py']

scenes = None
data_root = '{{$LAPE_MM_COCO:data/coco}}'
image_size = (160, 160)
metainfo = dict(classes=('person', ), palette=[(220, 20, 60)])

model = dict(
    backbone=dict(img_size=96, joining='default'),  # as in the classification model
    roi_head=dict(bbox_head=dict(num_classes=1), mask_head=dict(num_classes=1)),
    test_cfg=dict(rcnn=dict(max_per_img=50)))

# wide and high images are both fitted into this square
train_pipeline = _base_.train_pipeline
train_pipeline[2].update(scale=image_size)
train_pipeline[3].update(prob=0.5, direction='horizontal')
test_pipeline = _base_.test_pipeline
test_pipeline[1].update(scale=image_size)

train_dataloader = dict(
    batch_size=4,
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        filter_cfg=dict(min_size=1),
        pipeline=train_pipeline))
val_dataloader = dict(
    dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + '/annotations/instances_val2017.json')
test_evaluator = val_evaluator

max_epochs = 40
train_cfg = dict(max_epochs=max_epochs, val_interval=max_epochs)
param_scheduler = _base_.param_scheduler
param_scheduler[1].update(end=max_epochs)
auto_scale_lr = dict(base_batch_size=4)

default_hooks = dict(
    checkpoint=dict(interval=max_epochs, save_best=None), visualization=dict(draw=False))
