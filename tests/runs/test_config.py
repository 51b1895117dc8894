"""The edits that the tools' options stand for."""
import argparse

import pytest

pytest.importorskip('mmengine')

import torch  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.registry import MODELS  # noqa: E402

from lape_mm.runs import arguments  # noqa: E402
from lape_mm.runs.checks.build import build_model  # noqa: E402
from lape_mm.runs.config import (  # noqa: E402
    load_config,
    merge_options,
    set_backbones,
    settle_loaders,
)
from lape_mm.runs.errors import RunError  # noqa: E402

SETTINGS = dict(add_to_input=True, first_layer=1, hierarchical=False, last=0)


def config(**backbone):
    return Config(dict(model=dict(
        backbone=dict(**{'type': 'lape_mm.DeiT', 'joining': 'default', **backbone}),
        teachers=[dict(backbone=dict(type='ViTAdapter', joining='lape')), dict(type='ResNet')])))


def options(*words):
    parser = argparse.ArgumentParser()
    arguments.add_common(parser)
    return parser.parse_args(['--cfg-options', *words]).cfg_options


@MODELS.register_module(force=True)
class Pair(torch.nn.Module):
    def __init__(self, backbone, teacher=None):
        super().__init__()
        self.backbone = MODELS.build(backbone)
        self.teacher = MODELS.build(teacher) if teacher else None


class TestJoining:
    def test_is_set_everywhere(self):
        cfg = config()
        set_backbones(cfg, '--joining', joining='mpvg')
        assert cfg.model.backbone == dict(type='lape_mm.DeiT', joining='mpvg')
        assert cfg.model.teachers[0].backbone.joining == 'mpvg'
        assert 'joining' not in cfg.model.teachers[1]

    @pytest.mark.parametrize('backbone', ['model.backbone', 'model.teacher.backbone'])
    def test_a_class_token_is_never_dropped(self, backbone, tmp_path):
        pytest.importorskip('mmpretrain')
        path = tmp_path / 'config.py'
        path.write_text(
            "default_scope = 'mmpretrain'\nours = dict(type='lape_mm.DeiT', joining='pvg')\n"
            "model = dict(type='Pair', backbone=dict(ours), teacher=dict(type='Pair', "
            "backbone=dict(ours)))")
        given = options(f'{backbone}.class_token=False')
        cfg = load_config(str(path), options=given, joining='default')
        for place in ('model.backbone', 'model.teacher.backbone'):
            node = cfg
            for key in place.split('.'):
                node = node[key]
            assert node.joining == 'default'
            assert ('class_token' in node) == (place == backbone)
        cfg = load_config(str(path), options=options(f'{backbone}.class_token=True'),
                          joining='mpvg')
        with pytest.raises(RunError, match=f'^{backbone}: .*class token'):
            build_model(cfg)

    def test_without_our_backbones(self):
        with pytest.raises(RunError, match='no backbone of lape_mm'):
            set_backbones(Config(dict(model=dict(backbone=dict(type='ResNet')))), '--joining')

    def test_word_on_the_command_line(self):
        assert arguments.joining('mpvg') == 'mpvg'
        assert arguments.joining(str(SETTINGS)) == SETTINGS
        assert arguments.joining('dict(last=0, add_to_input=True)') == {
            'last': 0, 'add_to_input': True}
        for text in ('dict(last=print())', 'dict(**{})', 'dict([1])'):
            with pytest.raises(RunError, match='dict'):
                arguments.joining(text)
        with pytest.raises(RunError, match='dict'):
            arguments.joining('{last: 0}')


class TestOptions:
    def test_values(self):
        assert options('a=1', 'c=(1,2)', 'e=x=y', f'model.backbone.joining={SETTINGS}') == {
            'a': 1, 'c': (1, 2), 'e': 'x=y', 'model.backbone.joining': SETTINGS}

    def test_not_a_pair(self, capsys):
        with pytest.raises(SystemExit):
            options('a')
        assert 'KEY=VALUE' in capsys.readouterr().err

    @pytest.mark.parametrize('before', [
        {'joining': 'default'}, {'joining': {'last': 3, 'first_layer': 0}}, {}])
    def test_a_joining_replaces(self, before):
        cfg = Config(dict(model=dict(backbone=before)))
        merge_options(cfg, {'model.backbone.joining': SETTINGS})
        assert cfg.model.backbone.joining == SETTINGS

    def test_list_entries(self):
        cfg = Config(dict(pipeline=[dict(a=1), dict(transforms=[[dict(scales=[1])]])]))
        merge_options(cfg, {'pipeline.1.transforms.0.0.scales': [(2, 3)]})
        assert cfg.pipeline[1].transforms[0][0].scales == [(2, 3)]

    @pytest.mark.parametrize('key', ['pipeline.7.a', 'pipeline.0', 'x.y'])
    def test_no_place(self, key):
        with pytest.raises(RunError, match=f'--cfg-options {key}'):
            merge_options(Config(dict(pipeline=[dict(a=1)], x=1)), {key: 1})


def test_loaders_without_workers():
    cfg = Config(dict(train_dataloader=dict(num_workers=0, persistent_workers=True),
                      val_dataloader=dict(num_workers=2, persistent_workers=True)))
    settle_loaders(cfg)
    assert 'persistent_workers' not in cfg.train_dataloader
    assert cfg.val_dataloader.persistent_workers


class TestLoadConfig:
    def write(self, tmp_path, text):
        path = tmp_path / 'some_config.py'
        path.write_text(text)
        return str(path)

    def test_broken(self, tmp_path):
        with pytest.raises(RunError, match='cannot be read'):
            load_config(self.write(tmp_path, "_base_ = './no.py'\n"))

    def test_scope(self, tmp_path):
        with pytest.raises(RunError, match='expected one of mmpretrain, mmdet, mmseg'):
            load_config(self.write(tmp_path, "default_scope = 'mmfoo'\n"))

    def test_missing_toolbox(self, tmp_path, monkeypatch):
        monkeypatch.setattr('lape_mm.runs.config.missing', lambda *modules: ['mmdet'])
        with pytest.raises(RunError, match=r'pip install "lape_mm\[onedl\]"'):
            load_config(self.write(tmp_path, "default_scope = 'mmdet'\n"))

    def test_joining_comes_after_options(self, tmp_path, monkeypatch):
        monkeypatch.setattr('lape_mm.runs.config.missing', lambda *modules: [])
        path = self.write(tmp_path, "default_scope = 'mmdet'\n"
                          "model = dict(backbone=dict(type='lape_mm.DeiT'))\n")
        cfg = load_config(path, options={'model.backbone.joining': 'lape'}, joining='pvg')
        assert cfg.model.backbone.joining == 'pvg'
        assert cfg.work_dir.endswith('some_config')
        with pytest.raises(RunError, match="--joining: joining='foo': expected one of 'default'"):
            load_config(path, joining='foo')
