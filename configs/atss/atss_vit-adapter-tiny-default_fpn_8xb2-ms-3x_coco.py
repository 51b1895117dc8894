_base_ = [
    '../_base_/models/atss_vit_adapter_fpn.py', '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/adamw_3x.py', '../_base_/runtime_det.py'
]

val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
