"""COCO's relatives: files without annotations, panoptic ones, and those with holes."""
import json

import pytest

pytest.importorskip('mmdet')

from mmengine.config import Config  # noqa: E402
from PIL import Image  # noqa: E402

from lape_mm.runs.checks.preflight import check_data  # noqa: E402
from lape_mm.runs.checks.report import Report  # noqa: E402


def problems(root, content, part='test', *, kind='CocoDataset', evaluator=None, heads=2,
             seg=None, **dataset):
    """Of a file with this content, whose one image is there."""
    root.mkdir(exist_ok=True)
    Image.new('RGB', (8, 8)).save(root / '1.jpg')
    (root / 'file.json').write_text(json.dumps(content))
    report = Report(Config({
        'default_scope': 'mmdet', 'model': dict(roi_head=dict(bbox_head=dict(num_classes=heads))),
        f'{part}_dataloader': dict(dataset=dict(
            type=kind, data_root=str(root), ann_file='file.json', data_prefix=dict(img='', seg=seg),
            metainfo=dict(classes=('cat', 'sky')), **dataset)),
        f'{part}_evaluator': evaluator or dict(type='CocoMetric')}))
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


def panoptic(*segments, **changes):
    """As panoptic_val2017.json: an annotation is of an image."""
    return content(**{'annotations': [dict(
        image_id=1, file_name='1.png', segments_info=[
            dict(id=9 + number, category_id=category, bbox=[1, 1, 4, 4], area=16, iscrowd=0)
            for number, category in enumerate(segments)])], **changes})


def test_test_dev_has_no_annotations(tmp_path):
    """image_info_test-dev2017.json, whose results COCO's server evaluates."""
    image_info = content(annotations=None)
    written = dict(type='CocoMetric', format_only=True, outfile_prefix='x')
    assert problems(tmp_path, image_info, evaluator=written, test_mode=True) == ([], [])
    assert problems(tmp_path, image_info, evaluator=[written, written]) == ([], [])
    (line,), _ = problems(tmp_path, image_info, evaluator=[written, dict(type='CocoMetric')])
    assert '1 images and 0 objects' in line and 'test_evaluator.format_only=True' in line
    (line,), _ = problems(tmp_path, image_info, 'val')
    assert 'no image is left' in line
    (line,), _ = problems(tmp_path, image_info, 'train', evaluator=dict(format_only=False))
    assert 'no image is left' in line
    (line,), _ = problems(tmp_path, content(annotations=[]))
    assert line.endswith('1 images and 0 objects')


def test_panoptic_files_are_good(tmp_path):
    """Heads of boxes know the things alone."""
    kind = dict(kind='CocoPanopticDataset', heads=1)
    assert problems(tmp_path, panoptic(1, 2), 'train', **kind) == ([], [])
    (line,), _ = problems(tmp_path, panoptic(1, 2), **{**kind, 'heads': 2})
    assert '1 classes of things' in line and 'bbox_head.num_classes=1' in line
    # the map may be named before the image
    (tmp_path / 'maps').mkdir()
    (tmp_path / 'maps/1.png').touch()
    first = dict(sorted(panoptic(1).items()))
    (line,), _ = problems(tmp_path, first, **kind)
    assert '1.png, which is not in' in line
    assert problems(tmp_path, first, **kind, seg='maps') == ([], [])


def test_panoptic_files_with_mistakes(tmp_path):
    kind = dict(kind='CocoPanopticDataset', heads=1)
    (line,), _ = problems(tmp_path, panoptic(1, 7, 2), **kind)
    assert '1 of 3 objects have a category_id that categories do not list, first category_id 7 ' \
        'of object 10' in line
    (line,), _ = problems(tmp_path, panoptic(), **kind)
    assert '1 images and 0 objects' in line
    (line,), _ = problems(tmp_path, content(), **kind)
    assert "1 of 1 entries of annotations have no segments_info" in line and "'area': 16" in line
    _, (warning,) = problems(tmp_path, panoptic(2), 'train', **kind,
                             filter_cfg=dict(filter_empty_gt=True))
    assert '1 of 1 images have no object' in warning


@pytest.mark.parametrize('changes, said', [
    (dict(images=[dict(file_name='1.jpg', height=8, width=8)]),
     "1 of 1 entries of images have no id, which each needs, first {'file_name': '1.jpg'"),
    (dict(images=[dict(id=1, file_name='1.jpg', height=8, width=8), dict(id=[2])]),
     "1 of 2 entries of images have no id, which each needs, first {'id': [2]}"),
    (dict(images=['1.jpg']),
     "1 of 1 entries of images have no id, which each needs, first '1.jpg'"),
    (dict(categories=[dict(name='cat'), dict(id=2, name='sky')]),
     "1 of 2 entries of categories have no id, which each needs, first {'name': 'cat'}"),
    (dict(annotations=[dict(image_id=1, category_id=1)]), 'entries of annotations have no id'),
    (dict(annotations=[dict(id=1, image_id=[1], category_id=1)]), 'first image_id [1]'),
    (dict(images=[dict(id=1, file_name='1.jpg', height='8', width=8)]), 'no width or height')])
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


def test_entries_of_another_kind(tmp_path):
    (line,), _ = problems(tmp_path, content(images=7))
    assert 'images is of type int, expected a list' in line
    segments = [dict(image_id=1, segments_info=['x'])]
    (line,), _ = problems(tmp_path, panoptic(annotations=segments), kind='CocoPanopticDataset',
                          heads=1)
    assert "segments_info holds 'x', expected dicts" in line


def test_a_list_is_no_annotation_file(tmp_path):
    (line,), _ = problems(tmp_path, [content()])
    assert 'holds a list, expected a dict of images, annotations and categories' in line
