_base_ = './default_runtime.py'

default_scope = 'mmdet'
default_hooks = dict(
    checkpoint=dict(save_best='coco/bbox_mAP'),
    # to draw ground truth beside predictions: --cfg-options default_hooks.visualization.draw=True
    visualization=dict(type='DetVisualizationHook', draw=False, interval=50))
visualizer = dict(
    type='DetLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer')
log_processor = dict(type='LogProcessor', window_size=50, by_epoch=True)
