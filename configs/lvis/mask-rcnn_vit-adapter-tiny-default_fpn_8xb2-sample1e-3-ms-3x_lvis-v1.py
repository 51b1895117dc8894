_base_ = [
    '../_base_/models/mask_rcnn_vit_adapter_fpn.py', '../_base_/datasets/lvis_v1_instance_ms.py',
    '../_base_/schedules/adamw_3x.py', '../_base_/runtime_det.py'
]

custom_imports = dict(imports=['lape_mm', 'lape_mm.datasets.lvis'])  # for LVIS's metric
model = dict(
    roi_head=dict(bbox_head=dict(num_classes=1203), mask_head=dict(num_classes=1203)),
    # LVIS counts up to 300 boxes per image; rare classes score low
    test_cfg=dict(rcnn=dict(score_thr=1e-4, max_per_img=300)))
default_hooks = dict(checkpoint=dict(save_best='lvis/bbox_AP', rule='greater'))
