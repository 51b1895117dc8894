# Settings for all toolboxes; runtime_{cls,det,seg}.py add a toolbox's scope and its visualization.
# OpenMMLab's own tools must import lape_mm before mmcv.ops: it provides mmcv's operators where mmcv
# was installed without a compiler.
custom_imports = dict(imports=['lape_mm'])

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=dict(type='ParamSchedulerHook'),
    # leaves no half-written file; also saves on Ctrl-C and SIGTERM
    checkpoint=dict(type='lape_mm.SafeCheckpointHook', interval=1, max_keep_ckpts=2),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    # a resumed run ends like an uninterrupted one; bad samples are left out and counted
    exact_run=dict(type='lape_mm.ExactRunHook'),
    missed_validation=dict(type='lape_mm.MissedValidationHook'),
    finite_loss=dict(type='lape_mm.FiniteLossHook'),
    # writes record.json with settings and results; tools/results.py makes tables from it
    record=dict(type='lape_mm.RunRecordHook'))

env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'))

# synchronises BatchNorm in distributed runs only
sync_bn = 'torch'

vis_backends = [dict(type='LocalVisBackend')]
log_level = 'INFO'
load_from = None
resume = False
