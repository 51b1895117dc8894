"""Mistakes in a config end before the run is built, in lines that name key, value and remedy.

Each goes the way of tools/train.py. All of them:  pytest -m '' tests/reliability/test_mistakes.py
"""
import importlib.util
import shlex
from pathlib import Path

import pytest

pytest.importorskip('mmengine')

from mmengine.registry import Registry  # noqa: E402

from lape_mm.requirements import TOOLBOXES, missing  # noqa: E402
from lape_mm.runs import session  # noqa: E402

ROOT = Path(__file__).parents[2]
SCOPES = {'deit': 'mmpretrain', 'mask_rcnn': 'mmdet', 'upernet': 'mmseg', 'segmenter': 'mmseg'}
FEW = ['scenes.num_train=12', 'scenes.num_val=6']

# quick-start config, --cfg-options or (if it starts with a name and ' = ') lines below the config,
# and what the error has to say. Those after the line of each table run in the long part
BACKBONE = [
    ('deit', 'model.backbone.joining=lap', "joining='lap' expected 'default' 'mpvg'"),
    ('deit', 'model.backbone.class_token=True', "joining='mpvg' class_token"),
    ('deit', "model = dict(backbone=dict(joining=dict(_delete_=True, frist_layer=1)))",
     'frist_layer first_layer'),
    ('deit', "model = dict(backbone=dict(joining=dict(_delete_=True, first_layer=3)))",
     'first_layer=3 0, 1 or None'),
    ('deit', "model = dict(backbone=dict(joining=dict(_delete_=True, first_layer=1, last=9)))",
     'last=9 expected'),
    ('deit', 'model.backbone.arch.embed_dim=100', 'embed_dim=100 num_heads=3'),
    ('deit', 'model.backbone.arch.dept=6', 'arch.dept=6 depth'),
    ('deit', 'model.backbone.arch=enormous', "arch='enormous' 'tiny'"),
    ('deit', 'model.backbone.arch.num_heads=0', 'arch.num_heads=0 at least 1'),
    ('deit', 'model.backbone.img_size=8', 'img_size=8 at least 16 patch'),
    ('deit', 'model.backbone.patch_size=0', 'patch_size=0 at least 1'),
    ('deit', "model = dict(backbone=dict(patch_size='16'))", "patch_size='16' number"),
    ('deit', 'model.backbone.drop_path_rate=1.5', 'drop_path_rate=1.5 0 <= rate < 1'),
    ('deit', 'model.backbone.out_indices=(9,)', 'out_indices=(9,) 0..5'),
    ('deit', 'model.backbone.out_indices=(5,3)', 'out_indices=(5, 3) rising'),
    ('deit', 'model.backbone.patchsize=8', "patchsize=8 did you mean 'patch_size'"),
    ('deit', 'model.backbone.type=lape_mm.DeiTT', "'lape_mm.DeiTT' 'lape_mm.DeiT'"),
    ('deit', 'model.backbone.init_cfg.checkpoint=no/such.pth', 'no/such.pth does not exist'),
    ('mask_rcnn', 'model.backbone.windows=[4,4]', 'windows=[4, 4] 6 entries'),
    ('mask_rcnn', 'model.backbone.interaction_indexes=[(0,3),(3,5)]',
     'interaction_indexes=[(0, 3), (3, 5)] 0..5'),
    ('mask_rcnn', 'model.backbone.interaction_indexes=[(0,2),(3,9)]', '(3, 9) 0..5'),
    ('mask_rcnn', 'model.backbone.arch.deform_num_heads=7', 'deform_num_heads=7 48'),
    ('upernet', 'model.backbone.arch.depth=7', 'depth=7 interaction_indexes'),
    (),
    ('deit', 'model.backbone.arch.embed_dim=-96', 'embed_dim=-96 at least 1'),
    ('deit', 'model.backbone.arch.depth=six', "depth='six' whole number"),
    ('deit', 'model.backbone.arch.depth=1', 'depth'),
    ('deit', 'model.backbone.arch.mlp_ratio=0', 'mlp_ratio=0 number above 0'),
    ('deit', 'model.backbone.img_size=(64,64,64)', 'img_size=(64, 64, 64)'),
    ('deit', 'model.backbone.patch_size=-16', 'patch_size=-16 at least 1'),
    ('deit', 'model.backbone.in_channels=0', 'in_channels=0 at least 1'),
    ('deit', 'model.backbone.interpolation=nearest', "'nearest' bicubic"),
    ('deit', 'model.backbone.position=ropee', "'ropee' 'sincos_2d'"),
    ('deit', 'model.backbone.out_indices=(5,5)', 'out_indices=(5, 5)'),
    ('deit', 'model.backbone.out_indices=(2,)', 'out_indices=(2,) last one'),
    ('deit', 'model.backbone.out_indices=5', 'out_indices=5 last one'),
    ('deit', 'model.backbone.class_token=maybe', "class_token='maybe' True"),
    ('deit', 'model.backbone.frozen=nope', "frozen='nope' True or False"),
    ('deit', 'model.backbone.norm_eps=-1', 'norm_eps=-1 above 0'),
    ('mask_rcnn', 'model.backbone.windows=[4,0,None,4,4,None]', 'windows=[4, 0, None'),
    ('mask_rcnn', 'model.backbone.windows=7', 'windows=7 6 entries'),
    ('mask_rcnn', 'model.backbone.interaction_indexes=[(0,2),(3,4)]', '(3, 4) 0..5'),
    ('mask_rcnn', 'model.backbone.interaction_indexes=[(3,5),(0,2)]', '(0, 2) in order'),
    ('mask_rcnn', 'model.backbone.variant=detect', "'detect' 'detection'"),
    ('upernet', 'model.backbone.interaction_indexes=[(0,1),(2,3)]', 'four'),
]
NAMES = [
    ('deit', 'model.head.nm_classes=6', "model.head: nm_classes=6 did you mean 'num_classes'"),
    ('deit', 'model.head.loss.label_smooth=0.1', 'model.head.loss: label_smooth=0.1 _val'),
    ('mask_rcnn', 'model.neck.out_chanels=48', "model.neck: out_chanels=48 'out_channels'"),
    ('deit', 'model.data_preprocessor.men=[1,2,3]', "data_preprocessor: men=[1, 2, 3] 'mean'"),
    ('deit', 'train_dataloader.dataset.dataroot=x', "dataset: dataroot='x' 'data_root'"),
    ('deit', 'train_dataloader.dataset.pipeline.1.scal=64', "pipeline.1: scal=64 'scale'"),
    ('deit', 'train_dataloader.sampler.shufle=True', "sampler: shufle=True 'shuffle'"),
    ('deit', 'train_dataloader.batchsize=8', "train_dataloader: batchsize=8 'batch_size'"),
    ('deit', 'optim_wrapper.optimizer.learning_rate=1', 'optimizer: learning_rate=1 lr'),
    ('deit', 'optim_wrapper.clip_gard.max_norm=1', "optim_wrapper: clip_gard= 'clip_grad'"),
    ('deit', 'optim_wrapper.clip_grad.max_nrom=1', "clip_grad: max_nrom=1 'max_norm'"),
    ('deit', 'optim_wrapper.paramwise_cfg.layer_decay=.9', "'layer_decay' layer_decay_rate"),
    ('segmenter', 'optim_wrapper.paramwise_cfg.norm_decay_multi=0',
     "norm_decay_multi=0 'norm_decay_mult'"),
    ('deit', 'param_scheduler.1.eta_mn=0', "param_scheduler.1: eta_mn=0 'eta_min'"),
    ('deit', 'train_cfg.max_epoch=3', "train_cfg: max_epoch=3 'max_epochs'"),
    ('deit', 'val_evaluator.top_k=(1,)', "val_evaluator: top_k=(1,) 'topk'"),
    ('upernet', "val_evaluator.iou_metric=mDice", "iou_metric='mDice' 'iou_metrics'"),
    ('deit', 'default_hooks.checkpoint.intervall=1', "hooks.checkpoint: intervall=1 'interval'"),
    ('deit', 'default_hooks.chekpoint.interval=1', "default_hooks.chekpoint: lacks 'type'"),
    ('deit', 'default_hooks.visualization.enabel=True', "visualization: enabel=True 'enable'"),
    ('deit', 'randomness.sead=1', "randomness: sead=1 'seed'"),
    ('deit', 'auto_scale_lr.enabled=True', "auto_scale_lr: enabled=True 'enable'"),
    ('deit', 'scenes.num_training=12', "scenes: num_training=12 'num_train'"),
    ('deit', 'train_dataloder.batch_size=8', "train_dataloder= 'train_dataloader'"),
    ('deit', 'optim_wraper.type=OptimWrapper', "optim_wraper= 'optim_wrapper'"),
    ('deit', 'custom_hook = []', "custom_hook=[] 'custom_hooks'"),
    (),
    ('deit', 'load_form=x.pth', "load_form='x.pth' 'load_from'"),
    ('deit', 'val_evaluators.type=Accuracy', "val_evaluators= 'val_evaluator'"),
    ('deit', 'param_schedulers = []', "param_schedulers=[] 'param_scheduler'"),
    ('deit', 'model.backbon.type=DeiT', "model: backbon= 'backbone'"),
    ('mask_rcnn', 'model.rpn_head.anchor_generator.scale=[4]',
     "rpn_head.anchor_generator: scale=[4] 'scales'"),
    ('mask_rcnn', 'model.roi_head.bbox_head.bbox_coder.target_mean=[0.,0.,0.,0.]',
     "bbox_coder: target_mean= 'target_means'"),
    ('mask_rcnn', 'model.train_cfg.rcnn.sampler.pos_fractoin=.5', "rcnn.sampler: 'pos_fraction'"),
    ('upernet', 'model.decode_head.pool_scale=(1,)', "decode_head: pool_scale=(1,) 'pool_scales'"),
    ('mask_rcnn', 'train_dataloader.dataset.filter_config.min_size=3',
     "filter_config= 'filter_cfg'"),
    ('upernet', 'train_dataloader.dataset.pipeline.2.probability=0.1', 'probability=0.1 prob'),
    ('deit', 'val_dataloader.num_worker=1', "val_dataloader: num_worker=1 'num_workers'"),
    ('deit', 'val_cfg.fp_16=True', "val_cfg: fp_16=True 'fp16'"),
    ('upernet', 'train_cfg.max_epochs=3', "train_cfg: max_epochs=3 max_iters"),
    ('mask_rcnn', 'val_evaluator.metrics_=bbox', "val_evaluator: metrics_='bbox' 'metric'"),
    ('deit', 'default_hooks.logger.intervals=1', "hooks.logger: intervals=1 'interval'"),
    ('deit', 'visualizer.vis_backends.0.savedir=x', "vis_backends.0: savedir='x'"),
    ('deit', 'visualizer.vis_backend=[]', "visualizer: vis_backend=[] 'vis_backends'"),
    ('mask_rcnn', 'log_processor.window=10', "log_processor: window=10 'window_size'"),
    ('deit', 'env_cfg.cudnn_bench=True', "env_cfg: cudnn_bench=True 'cudnn_benchmark'"),
]
TYPES = [
    ('deit', 'model.type=ImageClassifer', "model: type='ImageClassifer' 'ImageClassifier'"),
    ('deit', 'model.head.type=LinearClassHead', "model.head: 'LinearClsHead'"),
    ('mask_rcnn', 'model.neck.type=FPNN', "model.neck: type='FPNN' 'FPN'"),
    ('deit', 'train_dataloader.dataset.type=CustomDatset', "dataset: 'CustomDataset'"),
    ('deit', 'train_dataloader.dataset.pipeline.0.type=LoadImage', "'LoadImageFromFile'"),
    ('deit', 'train_dataloader.sampler.type=Sampler', "sampler: type='Sampler' 'DefaultSampler'"),
    ('deit', 'optim_wrapper.optimizer.type=AdamWW', "optimizer: type='AdamWW' 'AdamW'"),
    ('deit', 'param_scheduler.1.type=CosineLR', "param_scheduler.1: type='CosineLR'"),
    ('deit', 'train_cfg.type=EpochTrainLoop', "train_cfg: 'EpochBasedTrainLoop'"),
    ('deit', 'val_evaluator.type=Acuracy', "val_evaluator: type='Acuracy' 'Accuracy'"),
    ('deit', 'default_hooks.timer.type=TimerHook', "hooks.timer: 'IterTimerHook'"),
    ('deit', 'default_scope=mmdet', "'ImageClassifier' 'mmdet' mmpretrain default_scope right"),
    ('mask_rcnn', 'model.type=EncoderDecoder', "'EncoderDecoder' mmseg has one"),
    ('deit', 'default_scope=mmfoo', "default_scope='mmfoo' mmpretrain, mmdet, mmseg"),
    (),
    ('deit', 'model.head.loss.type=SmoothLoss', 'model.head.loss: SmoothLoss'),
    ('deit', 'model.data_preprocessor.type=ClsPreprocessor', "'ClsDataPreprocessor'"),
    ('mask_rcnn', 'model.roi_head.bbox_head.bbox_coder.type=BoxCoder', 'bbox_coder: BoxCoder'),
    ('mask_rcnn', 'model.train_cfg.rcnn.assigner.type=MaxIouAssigner', "'MaxIoUAssigner'"),
    ('upernet', 'model.decode_head.norm_cfg.type=BNN', 'decode_head BNN'),
    ('deit', 'optim_wrapper.type=Wrapper', "optim_wrapper: type='Wrapper' 'OptimWrapper'"),
    ('deit', 'optim_wrapper.constructor=lape_mm.LayerDecay', 'optim_wrapper: lape_mm.LayerDecay'),
    ('deit', 'visualizer.type=Visualiser', "visualizer: type='Visualiser' 'Visualizer'"),
    ('deit', 'visualizer.vis_backends.0.type=Local', "vis_backends.0: type='Local'"),
    ('mask_rcnn', 'log_processor.type=LogProcesor', "type='LogProcesor' 'LogProcessor'"),
    ('deit', "custom_hooks = ['EMAHook']", "custom_hooks.0: 'EMAHook' expected a dict"),
    ('upernet', 'model.type=ImageClassifier', "'ImageClassifier' mmpretrain has one"),
]
VALUES = [
    ('deit', 'model.head.num_classes=10', 'model.head.num_classes=6 6 classes'),
    ('mask_rcnn', 'model.roi_head.bbox_head.num_classes=80', 'bbox_head.num_classes=6'),
    ('upernet', 'model.decode_head.num_classes=150', 'decode_head.num_classes=8'),
    ('deit', "model = dict(head=dict(num_classes='6'))", "model.head: num_classes='6'"),
    ('deit', 'model.head.in_channels=192', 'model.head: in_channels=192 gives 96'),
    ('mask_rcnn', 'model.neck.in_channels=[96,96,96,192]', 'model.neck: in_channels=[96, gives'),
    ('mask_rcnn', 'model.backbone.out_indices=[0,1,2]', 'neck: gives [96, 96, 96]'),
    ('upernet', 'model.auxiliary_head.in_index=-7', 'auxiliary_head: in_index=-7 gives 4 maps'),
    ('deit', 'train_dataloader.batch_size=0', 'train_dataloader: positive batch_size=0'),
    ('deit', "train_dataloader = dict(batch_size='8')", "batch_size='8' expected a number"),
    ('deit', 'train_cfg.max_epochs=0', 'train_cfg: max_epochs=0 from 1'),
    ('deit', 'train_cfg.val_interval=0', 'train_cfg: val_interval=0 from 1'),
    ('deit', 'optim_wrapper.optimizer.lr=-1', 'optim_wrapper.optimizer: learning rate: -1'),
    ('deit', "optim_wrapper = dict(optimizer=dict(lr='1e-3'))", "lr='1e-3' expected a number"),
    ('deit', 'optim_wrapper.paramwise_cfg.layer_decay_rate=2', 'layer_decay_rate=2 rate <= 1'),
    ('deit', 'param_scheduler.1.end=0', 'param_scheduler.1: end=0'),
    ('deit', 'val_evaluator=None', 'val_evaluator: is missing val_dataloader val_cfg'),
    ('mask_rcnn', "val_evaluator.metric=[bbox,seg]", "val_evaluator: 'segm' seg."),
    ('deit', 'val_evaluator.topk=(1,10)', 'val_evaluator: topk=(1, 10) num_classes=6'),
    ('deit', 'val_evaluator.topk=None', 'val_evaluator: topk=None num_classes=6'),
    ('deit', "train_dataloader.dataset.data_root=no/where", 'no/where does not exist data_root='),
    ('mask_rcnn', "val_dataloader.dataset.ann_file=no.json", 'no.json does not exist'),
    ('deit', 'load_from=no/such.pth', 'load_from: no/such.pth does not exist'),
    ('deit', 'train_dataloader.dataset.pipeline.3.prob=1.5', 'pipeline.3: prob'),
    (),
    ('deit', 'train_dataloader.batch_size=-1', 'train_dataloader: positive batch_size=-1'),
    ('deit', 'train_dataloader.num_workers=-1', 'train_dataloader: num_workers'),
    ('deit', 'train_dataloader.shuffle=True', 'train_dataloader: sampler shuffle'),
    ('deit', 'train_dataloader.sampler=DefaultSampler', "'DefaultSampler' expected a dict"),
    ('deit', 'train_dataloader.sampler.shuffle=yes', "shuffle='yes' True or False"),
    ('deit', 'train_cfg.max_epochs=-3', 'max_epochs=-3 from 1'),
    ('deit', 'train_cfg.max_epochs=2.5', 'max_epochs=2.5 whole number'),
    ('deit', 'train_cfg.max_epochs=ten', "max_epochs='ten' number"),
    ('deit', 'train_cfg.val_interval=-1', 'val_interval=-1 from 1'),
    ('deit', "train_cfg = dict(_delete_=True, max_epochs=3)", "train_cfg: lacks 'type'"),
    ('deit', "train_cfg = dict(_delete_=True, by_epoch=True)", "needs 'max_epochs'"),
    ('deit', 'optim_wrapper=None', 'optim_wrapper: is missing train_cfg'),
    ('deit', 'optim_wrapper.optimizer.weight_decay=-1', 'optimizer: weight_decay value: -1'),
    ('deit', 'optim_wrapper.optimizer.betas=(0.9,2.0)', 'optimizer: beta 2.0'),
    ('deit', 'optim_wrapper.accumulative_counts=0', 'optim_wrapper: _accumulative_counts'),
    ('deit', 'optim_wrapper.paramwise_cfg.layer_decay_rate=0', 'layer_decay_rate=0 0 < rate'),
    ('deit', 'default_hooks.logger.interval=0', 'hooks.logger: interval greater than 0'),
    ('deit', 'default_hooks.logger.interval=many', "interval='many' number"),
    ('deit', 'randomness.seed=-1', 'randomness: seed=-1 from 0'),
    ('deit', 'auto_scale_lr.base_batch_size=0', 'base_batch_size=0 from 1'),
    ('deit', 'model.head.num_classes=-6', 'model.head: num_classes=-6'),
    ('deit', 'model.head.loss.label_smooth_val=2', 'model.head.loss'),
    ('deit', 'model=None', "model: None 'type'"),
    ('deit', 'val_dataloader=None', 'val_dataloader: is missing'),
    ('mask_rcnn', 'model.data_preprocessor.mean=[1,2]', 'data_preprocessor: mean 1 or 3 values'),
    ('mask_rcnn', 'model.roi_head.bbox_head.in_channels=256', 'in_channels=256 gives 48'),
    ('segmenter', 'model.decode_head.in_channels=192', 'decode_head: in_channels=192 gives 96'),
    ('upernet', 'model.decode_head.in_channels=[96,96,96]', 'decode_head in_channels'),
    ('deit', 'train_dataloader.dataset.pipeline.2.crop_size=-1', 'pipeline.2'),
    ('deit', 'scenes.num_train=-3', 'scenes: num_train -3'),
]
TABLES = {'backbone': BACKBONE, 'names': NAMES, 'types': TYPES, 'values': VALUES}


def mistakes():
    for table, rows in TABLES.items():
        quick = rows.index(())
        for index, row in enumerate(rows):
            if row:
                yield pytest.param(*row, id=f'{table}-{row[0]}-{row[1][:60]}', marks=[
                    pytest.mark.long] if index > quick else [])


class Built(Exception):
    """Instead of a run."""


@pytest.fixture
def train(monkeypatch, tmp_path_factory, tmp_path, forgetful):
    """tools/train.py with a quick-start config and a mistake, as far as the building of the run."""
    spec = importlib.util.spec_from_file_location('train_tool', ROOT / 'tools/train.py')
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)

    def stop(cfg):
        raise Built
    monkeypatch.setattr(session.Runner, 'from_cfg', stop)
    monkeypatch.setenv('LAPE_MM_SCENES', str(tmp_path_factory.getbasetemp() / 'few_scenes'))

    def run(task, mistake=''):
        if lacking := missing(*TOOLBOXES[SCOPES[task]]):
            pytest.skip(f'needs {", ".join(lacking)}')
        lines, options = ('', [mistake]) if ' = ' not in mistake else (mistake, [])
        path = tmp_path / 'config.py'
        path.write_text(f"_base_ = '{ROOT}/configs/quickstart/{task}.py'\n{lines}\n")
        return tool.main([str(path), '--work-dir', str(tmp_path / 'run'), '--cfg-options', *FEW,
                          *filter(None, options)])
    return run


@pytest.mark.parametrize('task, mistake, said', mistakes())
def test_a_mistake_ends_before_the_run_is_built(task, mistake, said, train, capsys, tmp_path):
    status = train(task, mistake)
    error = capsys.readouterr().err
    assert status == 2, error
    lines = error.splitlines()
    assert 1 <= len(lines) <= 5 and all(line.startswith('error: ') for line in lines), error
    assert 'Traceback' not in error
    for word in shlex.split(said, posix=False):
        assert word in error, f'{word} is not in: {error}'
    assert not (tmp_path / 'run').exists()


def test_a_mistake_ends_before_the_data_are_drawn(train, monkeypatch):
    monkeypatch.setattr(session, 'draw_scenes', None)
    assert train('deit', 'model.backbone.joining=lap') == 2


@pytest.mark.parametrize('task', SCOPES)
def test_without_a_mistake_the_run_is_built(task, train, monkeypatch):
    kinds, build = [], Registry.build

    def count(self, cfg, *args, **kwargs):
        kinds.append(str(cfg.get('type')))
        return build(self, cfg, *args, **kwargs)
    monkeypatch.setattr(Registry, 'build', count)
    with pytest.raises(Built):
        train(task)
    assert sum(kind in ('lape_mm.DeiT', 'lape_mm.ViTAdapter') for kind in kinds) == 1, kinds


def test_there_are_enough():
    rows = [row for rows in TABLES.values() for row in rows if row]
    assert len({row[1] for row in rows}) == len(rows) >= 150
