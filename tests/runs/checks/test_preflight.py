"""Each mistake that would end in a traceback, zero AP or nan mIoU is named in one line."""
import json
import os

import numpy as np
import pytest

pytest.importorskip('mmengine')

from mmengine.config import Config  # noqa: E402
from PIL import Image  # noqa: E402

from lape_mm.requirements import TOOLBOXES, missing  # noqa: E402
from lape_mm.runs.checks.data_sets import sources  # noqa: E402
from lape_mm.runs.checks.preflight import (  # noqa: E402
    check_config,
    check_files,
    check_normalisation,
)
from lape_mm.runs.errors import Report, RunError, exit_status  # noqa: E402


@pytest.fixture
def coco(tmp_path):
    """A COCO folder of two categories; returns its root."""
    root = tmp_path / 'coco'
    for split in ('train2017', 'val2017'):
        (root / split).mkdir(parents=True)
        Image.new('RGB', (8, 8)).save(root / split / '1.jpg')
        write_coco(root, split, ['cat', 'dog'])
    return root


def write_coco(root, split, names, **changes):
    (root / 'annotations').mkdir(exist_ok=True)
    (root / 'annotations' / f'instances_{split}.json').write_text(json.dumps(dict(dict(
        images=[dict(id=1, file_name='1.jpg', height=8, width=8)],
        annotations=[dict(id=1, image_id=1, category_id=1, bbox=[1, 1, 4, 4], area=16)],
        categories=[dict(id=index + 1, name=name) for index, name in enumerate(names)]),
        **changes)))


@pytest.fixture
def ade(tmp_path):
    """An ADE folder whose label maps hold ids 0..3; returns its root."""
    root = tmp_path / 'ade'
    for split in ('training', 'validation'):
        for kind in ('images', 'annotations'):
            (root / kind / split).mkdir(parents=True)
        Image.new('RGB', (4, 4)).save(root / 'images' / split / 'a.jpg')
        write_labels(root, split, [0, 1, 2, 3])
    return root


def write_labels(root, split, ids):
    picture = np.resize(np.array(ids, dtype=np.uint8), (4, 4))
    Image.fromarray(picture).save(root / 'annotations' / split / 'a.png')


@pytest.fixture
def imagenet(tmp_path):
    """A folder of three classes; returns its root."""
    root = tmp_path / 'imagenet'
    for split in ('train', 'val'):
        for name in ('n1', 'n2', 'n3'):
            (root / split / name).mkdir(parents=True)
    return root


def needs(scope):
    return pytest.mark.skipif(bool(missing(*TOOLBOXES[scope])), reason=f'needs {scope}')


def problems(cfg, mode='train'):
    """Of data and files alone: the configs here have little else."""
    try:
        check_files(cfg, mode)
    except RunError as error:
        assert '\n' not in str(error)
        return error.problems
    return []


def detection(root, *, classes=('cat', 'dog'), heads=2):
    def loader(split):
        return dict(dataset=dict(
            type='CocoDataset', data_root=str(root), metainfo=dict(classes=classes),
            ann_file=f'annotations/instances_{split}.json', data_prefix=dict(img=f'{split}/')))
    return Config(dict(
        default_scope='mmdet',
        model=dict(type='MaskRCNN', rpn_head=dict(num_classes=1), roi_head=dict(
            bbox_head=dict(num_classes=heads), mask_head=dict(num_classes=heads))),
        train_dataloader=loader('train2017'), val_dataloader=loader('val2017'),
        val_evaluator=dict(type='CocoMetric',
                           ann_file=f'{root}/annotations/instances_val2017.json')))


def segmentation(root, *, classes=('a', 'b', 'c'), heads=3, **dataset):
    def loader(split):
        return dict(dataset=dict(
            type='BaseSegDataset', data_root=str(root), metainfo=dict(classes=classes),
            data_prefix=dict(img_path=f'images/{split}', seg_map_path=f'annotations/{split}'),
            **{'reduce_zero_label': True, **dataset}))
    return Config(dict(
        default_scope='mmseg', model=dict(decode_head=dict(num_classes=heads)),
        train_dataloader=loader('training'), val_dataloader=loader('validation')))


def classification(root, *, heads=3, **dataset):
    def loader(split):
        return dict(dataset=dict(type='CustomDataset', data_root=str(root), data_prefix=split,
                                 **dataset))
    return Config(dict(
        default_scope='mmpretrain', model=dict(
            data_preprocessor=dict(num_classes=heads), head=dict(num_classes=heads)),
        train_dataloader=loader('train'), val_dataloader=loader('val')))


@needs('mmdet')
class TestDetection:
    def test_good(self, coco):
        assert problems(detection(coco)) == problems(detection(coco, classes=('dog',), heads=1)) \
            == []

    def test_missing_root_is_one_line(self, tmp_path):
        line, = problems(detection(tmp_path / 'no'))
        assert 'train_dataloader' in line and 'val_dataloader' in line
        assert f'{tmp_path}/no does not exist' in line and '--cfg-options' in line

    def test_root_from_an_environment_variable(self, tmp_path, monkeypatch):
        path = tmp_path / 'config.py'
        path.write_text(
            "data_root = '{{$LAPE_MM_TEST_ROOT:nowhere/coco}}'\n"
            "default_scope = 'mmdet'\nmodel = dict()\n"
            "train_dataloader = dict(dataset=dict(type='CocoDataset', data_root=data_root))\n")
        line, = problems(Config.fromfile(path))
        assert 'set LAPE_MM_TEST_ROOT' in line and 'nowhere/coco' in line
        monkeypatch.setenv('LAPE_MM_TEST_ROOT', str(tmp_path / 'elsewhere'))
        line, = problems(Config.fromfile(path))
        assert 'set LAPE_MM_TEST_ROOT' in line and 'elsewhere' in line

    def test_missing_annotation_file_and_folder(self, coco):
        os.remove(coco / 'annotations' / 'instances_val2017.json')
        os.rename(coco / 'train2017', coco / 'renamed')
        found = problems(detection(coco))
        assert len(found) == 2
        assert 'train2017' in found[0] and 'folder' in found[0]
        assert found[1].startswith('val_dataloader.dataset, val_evaluator: annotation file')
        assert found[1].endswith('val_dataloader.dataset.ann_file=PATH val_evaluator.ann_file=PATH')

    def test_images_elsewhere(self, coco):
        os.remove(coco / 'train2017' / '1.jpg')
        line, = problems(detection(coco))
        assert '1.jpg, which is not in' in line

    def test_classes_that_the_file_lacks(self, coco):
        found = problems(detection(coco, classes=('cat', 'horse')))
        assert len(found) == 2
        assert "'horse'" in found[0] and "'dog'" in found[0]
        assert 'metainfo.classes=[cat,dog]' in found[0]

    def test_order(self, coco):
        write_coco(coco, 'val2017', ['dog', 'cat'])
        first, second = problems(detection(coco))
        assert first.startswith('val_dataloader.dataset: ')
        assert 'as in the file: [dog,cat]' in first
        assert 'its classes differ from those of the other data (in another order)' in second
        assert second.endswith('list the same classes in the same order in all files')

    def test_one_class_without_its_comma(self, coco):
        cfg = detection(coco, classes=('cat'), heads=1)
        line, = problems(cfg)
        assert "classes='cat': expected a list of names" in line and "('cat',)" in line
        names = coco / 'names.txt'
        names.write_text('cat\ndog\n')
        assert problems(detection(coco, classes=str(names))) == []

    def test_what_is_left_out_is_said(self, coco, capsys):
        write_coco(coco, 'train2017', ['cat', 'dog'])
        check_files(detection(coco, classes=('dog',), heads=1), 'train')
        assert ("train_dataloader.dataset: 1 of 1 objects are left out, because the config does "
                "not name their classes: 'cat'\n") in capsys.readouterr().err

    def test_an_evaluator_that_points_elsewhere(self, coco):
        cfg = detection(coco)
        cfg.val_evaluator.ann_file = 'data/none/annotations/instances_val2017.json'
        line, = problems(cfg)
        assert line.startswith('val_evaluator: annotation file data/none/')

    @pytest.mark.parametrize('changes, said', [
        (dict(images=[dict(id=1, file_name='1.jpg', height=8)]), "file: KeyError: 'width'"),
        (dict(images=['1.jpg']), 'annotation file: TypeError'),
        (dict(categories=[]), "lacks 2 of the config's 2 classes"),
        (dict(annotations=[dict(image_id=1, category_id=1)]), "annotation file: KeyError: 'id'"),
        (dict(annotations=[dict(id=1, image_id=9, category_id=1)]), 'object 1 has image_id=9'),
        (dict(annotations=[]), '1 images and 0 objects: there is nothing to train or evaluate')])
    def test_files_with_holes(self, changes, said, coco):
        write_coco(coco, 'train2017', ['cat', 'dog'], **changes)
        line, = problems(detection(coco))
        assert line.startswith('train_dataloader.dataset: ') and said in line

    def test_test_dev_has_no_annotations(self, coco):
        """image_info_test-dev2017.json, whose results COCO's server evaluates."""
        write_coco(coco, 'val2017', ['cat', 'dog'], annotations=[])
        cfg = detection(coco)
        cfg.test_dataloader = cfg.val_dataloader
        assert problems(cfg, 'test') == []

    @pytest.mark.parametrize('text', ['{"images": [', '', '[]'])
    def test_another_kind_of_file(self, text, coco):
        (coco / 'annotations' / 'instances_train2017.json').write_text(text)
        assert 'is not a COCO annotation file' in problems(detection(coco))[0]

    def test_wrappers(self, coco):
        cfg = detection(coco, heads=80)
        inner = cfg.train_dataloader.dataset
        cfg.train_dataloader.dataset = dict(
            type='RepeatDataset', times=2, dataset=dict(
                type='ConcatDataset', datasets=[inner, dict(inner, data_root='nowhere')]))
        assert [source.where for source in sources(cfg, 'train')] == [
            f'train_dataloader.dataset.dataset.datasets.{number}' for number in range(2)]
        assert any('nowhere' in line for line in problems(cfg))


@needs('mmseg')
class TestSegmentation:
    def test_good(self, ade):
        write_labels(ade, 'training', [1, 255])
        assert problems(segmentation(ade)) == []

    def test_beyond(self, ade):
        write_labels(ade, 'validation', [1, 7])
        line, = problems(segmentation(ade))
        assert line.startswith('val_dataloader') and 'id 7' in line and '1..3' in line

    def test_ids_from_one_without_reduce_zero_label(self, ade):
        assert len(problems(segmentation(ade, reduce_zero_label=False))) == 2
        line = problems(segmentation(ade, reduce_zero_label=False))[0]
        assert 'reduce_zero_label=True' in line

    def test_all_ignored(self, ade):
        write_labels(ade, 'training', [0, 255])
        line, = problems(segmentation(ade))
        assert 'ignored' in line and 'reduce_zero_label=False' in line

    def test_colour_maps(self, ade):
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(
            ade / 'annotations' / 'training' / 'a.png')
        assert 'one channel' in problems(segmentation(ade))[0]

    def test_images_without_labels(self, ade):
        Image.new('RGB', (4, 4)).save(ade / 'images' / 'training' / 'b.jpg')
        assert "1 of 2 images" in problems(segmentation(ade))[0]
        for name in 'ab':
            os.remove(ade / 'images' / 'training' / f'{name}.jpg')
        assert 'no *.jpg in ' in problems(segmentation(ade))[0]


@needs('mmpretrain')
class TestClassification:
    def test_good(self, imagenet):
        assert problems(classification(imagenet)) == []

    def test_validation_has_other_classes(self, imagenet):
        os.rename(imagenet / 'val' / 'n2', imagenet / 'val' / 'n9')
        line, = problems(classification(imagenet))
        assert line.startswith('val_dataloader') and 'n9' in line

    def test_imagenet_dataset_with_other_folders(self, imagenet):
        cfg = classification(imagenet)
        cfg.train_dataloader.dataset = dict(type='ImageNet', data_root=str(imagenet),
                                            split='train')
        assert '1000 classes' in problems(cfg)[0]

    def test_cifar(self, tmp_path):
        cfg = classification(tmp_path / 'cifar', heads=100)
        cfg.train_dataloader = cfg.test_dataloader = dict(dataset=dict(
            type='CIFAR100', data_root=str(tmp_path / 'cifar'), split='train'))
        cfg.pop('val_dataloader')
        assert problems(cfg) == problems(cfg, 'test') == []  # it is downloaded
        cfg.model.head.num_classes = 10
        line, = problems(cfg)
        assert '100 classes' in line and 'model.head.num_classes=100' in line


def test_checkpoints(tmp_path):
    cfg = Config(dict(
        default_scope='mmdet', load_from='no/start.pth',
        model=dict(backbone=dict(init_cfg=dict(checkpoint='no/vit.pth')),
                   neck=dict(init_cfg=dict(checkpoint='https://example.org/neck.pth')))))
    assert problems(cfg) == [
        'load_from: checkpoint no/start.pth does not exist',
        'model.backbone.init_cfg.checkpoint: checkpoint no/vit.pth does not exist']
    # what is tested comes from the tested checkpoint alone
    assert len(problems(cfg, 'test')) == 1
    assert problems(Config(dict(model=dict(teacher=dict(
        type='TimmClassifier', checkpoint_path='no/teacher.pth'))))) == [
            'model.teacher.checkpoint_path: checkpoint no/teacher.pth does not exist']


def test_a_frozen_recipe_wants_weights():
    optim = dict(constructor='lape_mm.FreezingOptimWrapperConstructor')
    model = dict(backbone=dict(type='lape_mm.T2TViT'))
    text = '\n'.join(problems(Config(dict(model=model, optim_wrapper=optim))))
    assert 'model.backbone.init_cfg.checkpoint=PATH' in text
    assert not problems(Config(dict(model=model, optim_wrapper=optim, resume=True)))


def test_random_weights_are_said(capsys):
    def said(**changes):
        cfg = Config(dict(default_scope='mmdet',
                          model=dict(backbone=dict(type='lape_mm.ViTAdapter', joining='pvg'))))
        cfg.merge_from_dict(changes)
        check_files(cfg, 'train')
        return 'starts from random weights' in capsys.readouterr().err
    assert said()
    assert not said(scenes=dict(num_train=3)) and not said(resume=True)
    assert not said(**{'model.backbone.init_cfg.checkpoint': 'https://example.org/vit.pth'})


def test_names_come_first_then_values_then_data(coco):
    cfg = detection(coco, heads=80)
    cfg.train_dataloader.dataset.metainf = {}
    with pytest.raises(RunError, match='metainfo') as error:
        check_config(cfg, 'train')
    assert len(error.value.problems) == 1
    del cfg.train_dataloader.dataset['metainf']
    with pytest.raises(RunError, match='val_cfg: is missing') as error:
        check_config(cfg, 'train')
    assert not any('80' in problem for problem in error.value.problems)


def test_exit_status(capsys):
    def fails():
        raise RunError(['one', 'two'])
    assert exit_status(fails) == 2
    assert capsys.readouterr().err == 'error: one\nerror: two\n'
    assert exit_status(lambda: None) == 0


def test_images_that_are_not_normalised_as_the_weights_are_warned_of():
    def warnings(arch, mean):
        report = Report(Config(dict(model=dict(
            data_preprocessor=dict(mean=mean, std=[58.395, 57.12, 57.375]),
            backbone=dict(type='lape_mm.ViTAdapter', arch=arch)))))
        check_normalisation(report)
        return report.warnings

    imagenet = [123.675, 116.28, 103.53]
    assert not warnings('dinov2_small', imagenet) and not warnings('small', [0., 0., 0.])
    mean, = warnings('mae_base', [127.5, 127.5, 127.5])
    assert 'mean=[127.5' in mean and "'mae_base'" in mean and '123.675' in mean
    assert len(warnings('eva02_small', imagenet)) == 2
