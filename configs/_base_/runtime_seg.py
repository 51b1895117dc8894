_base_ = './default_runtime.py'

default_scope = 'mmseg'
default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=16000, save_best='mIoU'),
    # to draw ground truth beside predictions: --cfg-options default_hooks.visualization.draw=True
    visualization=dict(type='SegVisualizationHook', draw=False, interval=50))
visualizer = dict(
    type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer')
log_processor = dict(by_epoch=False)
