_base_ = './default_runtime.py'

default_scope = 'mmpretrain'
default_hooks = dict(
    logger=dict(interval=100),
    checkpoint=dict(save_best='accuracy/top1'),
    # to draw predictions: --cfg-options default_hooks.visualization.enable=True
    visualization=dict(type='VisualizationHook', enable=False, interval=5000))
visualizer = dict(
    type='UniversalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
