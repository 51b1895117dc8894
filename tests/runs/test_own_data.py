"""--data and its companions: what becomes of a config. Whole runs are in the long part."""
import argparse
import json
from pathlib import Path

import pytest

pytest.importorskip('mmengine')
for toolbox in ('mmpretrain', 'mmdet', 'mmseg'):
    pytest.importorskip(toolbox)

import own_data  # noqa: E402
from mmengine.config import Config  # noqa: E402

from lape_mm.runs import arguments, session  # noqa: E402
from lape_mm.runs.checks.preflight import check_config, check_files  # noqa: E402
from lape_mm.runs.errors import RunError  # noqa: E402

KINDS = {'mask_rcnn': 'coco', 'upernet': 'maps', 'segmenter_small': 'maps', 'deit': 'classes'}


def read(*words):
    """The config of a command, after all checks that come before a run."""
    parser = argparse.ArgumentParser()
    parser.add_argument('config')
    parser.add_argument('--auto-scale-lr', action='store_true')
    arguments.add_data(parser)
    arguments.add_common(parser)
    cfg = session.read_config(parser.parse_args([str(word) for word in words]))
    check_config(cfg, 'train')
    if cfg.get('data_root') and '--data' in words:
        check_files(cfg, 'train')
    return cfg


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / 'photos'


def test_fixed_padding_holds_whole_patches():
    folder = Path(__file__).parents[2] / 'configs/mask2former'
    cfg = read(folder / 'mask2former_vit-adapter-tiny-default_8xb2-lsj-50e_coco.py',
               '--img-size', 100)
    assert cfg.model.data_preprocessor.batch_augments[0].size == (128, 128)  # of 100 * 1024 / 800


@pytest.mark.parametrize('name', KINDS)
def test_a_recipe_follows_the_data(name, root):
    getattr(own_data, KINDS[name])(root)
    cfg = read(name, '--data', root, '--epochs', 20, '--img-size', 96, '--batch', 2)
    assert cfg.work_dir == f'work_dirs/{name}_photos'
    names = cfg.train_dataloader.dataset.metainfo.classes
    assert names == cfg.test_dataloader.dataset.metainfo.classes == ['ant', 'bee']
    head = cfg.model.get('head') or cfg.model.get('decode_head') or cfg.model.roi_head.mask_head
    assert head.num_classes == 2 and cfg.train_dataloader.batch_size == 2
    assert cfg.auto_scale_lr.enable
    steps = {step.type: step for step in cfg.test_dataloader.dataset.pipeline}
    if name == 'deit':
        assert (steps['ResizeEdge'].scale, steps['CenterCrop'].crop_size) == (110, 96)
        assert cfg.model.backbone.img_size == 96
        assert cfg.train_cfg.max_epochs == cfg.param_scheduler[1].end == 20
        assert cfg.param_scheduler[0].end == cfg.param_scheduler[1].begin == 1
    elif name == 'mask_rcnn':
        assert steps['Resize'].scale == (160, 96) and cfg.model.backbone.img_size == 224
        assert cfg.param_scheduler[1].milestones == [15, 18]
        assert cfg.param_scheduler[0].end == 20 * 4 // 10  # iterations: a tenth of the run
        assert cfg.val_evaluator.metric == ['bbox', 'segm']
    else:
        assert steps['Resize'].scale == (384, 96)
        assert cfg.model.test_cfg.crop_size == cfg.model.data_preprocessor.size == (96, 96)
        assert cfg.train_cfg.max_iters == cfg.param_scheduler[-1].end == 20 * 3


def test_a_warm_up_of_one_step_goes(root):
    """mmengine's schedule of one step would stay at its first rate, a thousandth."""
    own_data.coco(root)
    few, more = (read('mask_rcnn', '--data', root, '--epochs', epochs) for epochs in (3, 5))
    assert [one.type for one in few.param_scheduler] == ['MultiStepLR']
    assert more.param_scheduler[0].end == 2


def test_boxes_without_outlines_take_the_mask_head_off(root):
    own_data.voc(root)
    cfg = read('mask_rcnn', '--data', root)
    assert 'mask_head' not in cfg.model.roi_head and cfg.val_evaluator.metric == 'bbox'
    assert (cfg.train_cfg.max_epochs, cfg.param_scheduler[1].milestones) == (36, [27, 33])


def test_a_config_of_mmdet_and_one_of_its_own_options(root):
    own_data.yolo(root)
    import mmdet
    path = f'{mmdet.__path__[0]}/.mim/configs/yolox/yolox_tiny_8xb8-300e_coco.py'
    cfg = read(path, '--data', root, '--epochs', 30,
               '--cfg-options', 'train_dataloader.batch_size=3')
    inner = cfg.train_dataloader.dataset.dataset  # of the wrapper that mixes images
    assert inner.metainfo.classes == ['ant', 'bee'] and cfg.model.bbox_head.num_classes == 2
    assert cfg.custom_hooks[0].num_last_epochs == 2 and cfg.train_cfg.max_epochs == 30
    assert cfg.train_dataloader.batch_size == 3


def test_ignored_id_is_the_same_everywhere(root):
    own_data.maps(root, (0, 1, 7))
    cfg = read('upernet', '--data', root, '--ignore-index', 7)
    assert cfg.model.decode_head.ignore_index == cfg.model.auxiliary_head.ignore_index == 7
    assert cfg.val_evaluator.ignore_index == cfg.model.data_preprocessor.seg_pad_val == 7
    crop, = (step for step in cfg.train_dataloader.dataset.pipeline if step.type == 'RandomCrop')
    assert crop.ignore_index == cfg.train_dataloader.dataset.ignore_index == 7


def test_rate_and_length_without_data(root):
    cfg = read('deit_small', '--lr', '1e-4', '--epochs', 30)
    assert cfg.optim_wrapper.optimizer.lr == 1e-4 and not cfg.auto_scale_lr.enable
    assert cfg.param_scheduler[1].eta_min == pytest.approx(1e-6)
    assert [cfg.param_scheduler[0].end, cfg.param_scheduler[1].end] == [1, 30]


@pytest.mark.parametrize('words, text', [
    (('mask_rcnn_huge', '--data', 'photos'), "mask_rcnn_huge, did you mean 'mask_rcnn'?"),
    (('mask_rcn', '--data', 'photos'), "config mask_rcn, did you mean 'mask_rcnn'?"),
    (('deit', '--data', 'photos'), '--data photos: holds COCO; this config needs class folders'),
    (('deit', '--dry'), '--data FOLDER'),
    (('upernet', '--epochs', 3), '--epochs --data train_cfg.max_iters'),
    (('mask_rcnn', '--lr', 1, '--auto-scale-lr'), '--lr leave one out')])
def test_options_that_contradict(words, text, root):
    own_data.coco(root)
    with pytest.raises(RunError) as caught:
        read(*words)
    assert len(caught.value.problems) == 1
    assert all(word in str(caught.value) for word in text.split())


def dry_run(name, kind, root):
    """Trains on a folder of this kind; returns the exit status."""
    from lape_mm.__main__ import main
    from lape_mm.shipped import shipped
    getattr(own_data, kind)(root)
    if name.startswith('configs'):
        name = str(shipped('configs').parent / name)
    return main(['train', name, '--data', str(root), '--dry', '--work-dir', 'dry', '--img-size',
                 '64'])


@pytest.mark.long
@pytest.mark.parametrize('name, kind', [
    ('configs/quickstart/mask_rcnn.py', 'yolo'), ('configs/quickstart/upernet.py', 'maps'),
    ('deit', 'classes')])
def test_a_dry_run(name, kind, root, capsys):
    from lape_mm.__main__ import main
    assert dry_run(name, kind, root) == 0
    printed = capsys.readouterr().out
    for line in ('data: ', 'truth: ', 'metrics: ', 'report: ', 'config:      dry/config.py'):
        assert f'\n{line}' in f'\n{printed}'
    assert (root.parent / 'dry/truth.jpg').stat().st_size > 1000
    checkpoint = next((root.parent / 'dry').glob('*2.pth'), None) or next(
        (root.parent / 'dry').glob('iter_*.pth'))
    assert Config.fromfile('dry/config.py').data_root == str(root)
    assert main(['test', 'dry/config.py', str(checkpoint), '--work-dir', 'tested']) == 0
    assert '<h2>Metrics</h2>' in next(root.parent.glob('tested/*/report.html')).read_text()


@pytest.mark.long
def test_the_report_in_a_browser(root, browser, forgetful):
    """Curves, tables and images are there, without a request to any host."""
    assert dry_run('deit', 'classes', root) == 0
    report = next(root.parent.glob('dry/*/report.html'))
    assert report.stat().st_size < 5e6
    browser.get(report.as_uri())
    sections = browser.execute_script("""
        return Object.fromEntries([...document.querySelectorAll('section')].map(one => [
            one.querySelector('h2').innerText,
            {cells: one.querySelectorAll('td').length,
             images: [...one.querySelectorAll('img')].map(image => image.naturalWidth)}]))""")
    assert {'Metrics', 'Changed from the recipe', 'Curves', 'Confusions', 'Worst images',
            'Best images'} <= sections.keys()
    for title, found in sections.items():
        assert found['cells'] or min(found['images'], default=0) > 100, title
    requests = [json.loads(entry['message'])['message'] for entry in browser.get_log('performance')]
    asked = [one['params']['request']['url'] for one in requests
             if one['method'] == 'Network.requestWillBeSent']
    assert asked and all(url.startswith(('file:', 'data:')) for url in asked), asked
