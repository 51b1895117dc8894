# What all toolboxes share; runtime_{cls,det,seg}.py add a toolbox's scope and its pictures.
# OpenMMLab's own tools import this before mmcv's operators, which lape_mm provides where mmcv was
# installed without a compiler
custom_imports = dict(imports=['lape_mm'])

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=dict(type='ParamSchedulerHook'),
    # whole or not there; written on Ctrl-C and SIGTERM too
    checkpoint=dict(type='lape_mm.SafeCheckpointHook', interval=1, max_keep_ckpts=2),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    # a resumed run ends as the run that was never killed; bad samples are left out and counted
    exact_run=dict(type='lape_mm.ExactRunHook'),
    missed_validation=dict(type='lape_mm.MissedValidationHook'),
    finite_loss=dict(type='lape_mm.FiniteLossHook'),
    # record.json: what was run and what came out; tools/results.py makes tables of it
    record=dict(type='lape_mm.RunRecordHook'))

env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'))

# BatchNorm is synchronised where a run is distributed, and stays plain BatchNorm elsewhere
sync_bn = 'torch'

vis_backends = [dict(type='LocalVisBackend')]
log_level = 'INFO'
load_from = None
resume = False
