_base_ = [
    '../_base_/models/cascade_mask_rcnn_vit_adapter_fpn.py',
    '../_base_/datasets/coco_instance_ms.py', '../_base_/schedules/adamw_3x.py',
    '../_base_/runtime_det.py'
]
