"""COCO's relatives: files without annotations, panoptic ones, and those with holes."""
import json

import pytest

pytest.importorskip('mmdet')

from mmengine.config import Config  # noqa: E402
from PIL import Image  # noqa: E402

from lape_mm.runs.checks.preflight import check_data  # noqa: E402
from lape_mm.runs.checks.report import Report  # noqa: E402


def problems(root, content, part='test', *, kind='CocoDataset', heads=2, **dataset):
    """Of a file with this content, whose one image is there."""
    root.mkdir(exist_ok=True)
    Image.new('RGB', (8, 8)).save(root / '1.jpg')
    (root / 'file.json').write_text(json.dumps(content))
    report = Report(Config({
        'default_scope': 'mmdet', 'model': dict(roi_head=dict(bbox_head=dict(num_classes=heads))),
        f'{part}_dataloader': dict(dataset=dict(
            type=kind, data_root=str(root), ann_file='file.json', data_prefix=dict(img=''),
            metainfo=dict(classes=('cat', 'sky')), **dataset)),
        f'{part}_evaluator': dict(type='CocoMetric')}))
    check_data(report, 'test' if part == 'test' else 'train')
    assert all('\n' not in line for line in report.lines())
    return report.lines(), report.warnings


def content(**changes):
    """As COCO's, with a thing and what is none."""
    found = dict(
        images=[dict(id=1, file_name='1.jpg', height=8, width=8)],
        annotations=[dict(id=1, image_id=1, category_id=1, bbox=[1, 1, 4, 4], area=16)],
        categories=[dict(id=1, name='cat', isthing=1), dict(id=2, name='sky', isthing=0)])
    found.update(changes)
    return {key: value for key, value in found.items() if value is not None}


def test_test_dev_has_no_annotations(tmp_path):
    """image_info_test-dev2017.json, whose results COCO's server evaluates."""
    image_info = content(annotations=None)
    assert problems(tmp_path, image_info, test_mode=True) == ([], [])
    for part in ('train', 'val'):
        (line,), _ = problems(tmp_path, image_info, part)
        assert line.endswith('lists 1 images and 0 objects: there is nothing to train or evaluate '
                             'on')


def test_panoptic_files(tmp_path):
    """Heads of boxes know the things alone."""
    segments = [dict(id=9, category_id=1, bbox=[1, 1, 4, 4], area=16, iscrowd=0)]
    panoptic = content(annotations=[dict(image_id=1, file_name='1.png', segments_info=segments)])
    kind = dict(kind='CocoPanopticDataset')
    assert problems(tmp_path, panoptic, 'train', heads=1, **kind) == ([], [])
    (line,), _ = problems(tmp_path, panoptic, heads=2, **kind)
    assert '1 classes of things' in line and 'bbox_head.num_classes=1' in line


@pytest.mark.parametrize('changes, said', [
    (dict(images=[dict(file_name='1.jpg', height=8, width=8)]),
     "1 of 1 entries of images lack id; the first is {'file_name': '1.jpg'"),
    (dict(images=[dict(id=1, file_name='1.jpg', height=8, width=8), dict(id=[2])]),
     "1 of 2 entries of images lack id; the first is {'id': [2]}"),
    (dict(images=['1.jpg']),
     "1 of 1 entries of images lack id; the first is '1.jpg'"),
    (dict(categories=[dict(name='cat'), dict(id=2, name='sky')]),
     "1 of 2 entries of categories lack id; the first is {'name': 'cat'}"),
    (dict(annotations=[dict(image_id=1, category_id=1)]), 'entries of annotations lack id'),
    (dict(annotations=[dict(id=1, image_id=[1], category_id=1)]), 'lack image_id'),
    (dict(images=[dict(id=1, file_name='1.jpg', height='8', width=8)]), 'lack height')])
def test_entries_with_holes_are_named(changes, said, tmp_path):
    (line,), _ = problems(tmp_path, content(**changes))
    assert said in line and 'file.json' in line


def test_one_file_for_training_and_validation(tmp_path):
    """Its holes are one problem of two places."""
    (tmp_path / 'file.json').write_text(json.dumps(content(images=[dict(file_name='1.jpg')])))
    Image.new('RGB', (8, 8)).save(tmp_path / '1.jpg')
    loader = dict(dataset=dict(type='CocoDataset', data_root=str(tmp_path), ann_file='file.json',
                               metainfo=dict(classes=('cat', 'sky'))))
    report = Report(Config(dict(default_scope='mmdet', model=dict(), train_dataloader=loader,
                                val_dataloader=loader)))
    check_data(report, 'train')
    line, = report.lines()
    assert line.startswith('train_dataloader.dataset, val_dataloader.dataset: ')


@pytest.mark.parametrize('wrong', [content(images=7), [content()]])
def test_lists_of_another_kind(wrong, tmp_path):
    (line,), _ = problems(tmp_path, wrong)
    assert 'expected a dict of images, annotations and categories, a list each' in line
