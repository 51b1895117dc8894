"""Layouts that --data recognises, and the mistakes in them that it names."""
import shutil
from pathlib import Path

import own_data
import pytest
from own_data import coco, draw, edit_json, maps, voc, write, yolo

from lape_mm.datasets.folders import read_folder

TOOLBOX = {'maps': 'mmseg', 'classes': 'mmpretrain'}
BOX = [4, 6, 16, 24]


def read(root, kind, **options):
    return read_folder(root, TOOLBOX.get(kind, 'mmdet'), **options)


@pytest.mark.parametrize('kind', ['coco', 'voc', 'yolo'])
def test_boxes_are_the_same_in_every_layout(kind, tmp_path):
    getattr(own_data, kind)(tmp_path)
    if kind == 'voc':  # Oxford-IIIT Pet's masks have the names of its images
        draw(tmp_path / 'Annotations/trimaps/0.png')
    data = read(tmp_path, kind)
    assert data.classes == ['ant', 'bee'] and len(data.train) + len(data.val) == 10 and data.val
    for sample in data.train + data.val:
        assert sample.size == (48, 40) and (tmp_path / sample.path).is_file()
        one, = sample.objects
        assert one['bbox'] == pytest.approx(BOX) and one['area'] == pytest.approx(384)
        assert one['category_id'] == int(sample.path[-5]) % 2


def test_a_polygon_of_yolo_is_an_outline(tmp_path):
    yolo(tmp_path)
    write(tmp_path / 'train/labels/0.txt', '1 0 0 0.5 0 0.5 0.5')
    one, = read(tmp_path, 'yolo').train[0].objects
    assert one['segmentation'] == [[0, 0, 24, 0, 24, 20]] and one['bbox'] == [0, 0, 24, 20]
    assert one['area'] == 240 and one['category_id'] == 1


def test_names_of_yolo_may_begin_at_1(tmp_path):
    yolo(tmp_path)
    write(tmp_path / 'data.yaml', 'names: {1: ant, 2: bee, 3: ant}')
    (tmp_path / 'train/images/0.jpg').rename(tmp_path / 'train/images/a%200.jpg')
    (tmp_path / 'train/labels/0.txt').unlink()
    write(tmp_path / 'train/labels/a%200.txt', '1 0.5 0.5 0.2 0.2')
    data = read(tmp_path, 'yolo')
    assert data.classes == ['class_0', 'ant', 'bee', 'class_3']
    assert data.train[-1].path.endswith('a%200.jpg')
    assert data.train[-1].objects[0]['category_id'] == 1


def test_images_without_a_size_are_measured(tmp_path):
    coco(tmp_path)
    edit_json(tmp_path, lambda content: [one.update(width=None) for one in content['images']])
    assert {sample.size for sample in read(tmp_path, 'coco').train} == {(48, 40)}


def test_images_of_a_split_belong_to_its_file(tmp_path):
    for split in ('train', 'val'):
        coco(tmp_path, split, f'images/{split}')
        for number in range(10):  # the same names in both folders
            (tmp_path / f'images/{split}/{split}{number}.jpg').rename(
                tmp_path / f'images/{split}/{number}.jpg')
        path = tmp_path / f'annotations/instances_{split}.json'
        path.write_text(path.read_text().replace(f'up\\\\{split}', 'up/'))
    data = read(tmp_path, 'coco')
    assert {sample.path.split('/')[1] for sample in data.train} == {'train'}
    assert {sample.path.split('/')[1] for sample in data.val} == {'val'}


def test_more_images_leave_the_split_as_it_is(tmp_path):
    own_data.classes(tmp_path, count=30)
    before = read(tmp_path, 'classes')
    own_data.classes(tmp_path, count=40)
    after = read(tmp_path, 'classes')
    for part in ('train', 'val'):
        first, then = ({sample.path for sample in getattr(one, part)} for one in (before, after))
        assert first and first <= then
    assert {sample.label for sample in before.val} == {0, 1}


@pytest.mark.parametrize('ids, names, options, classes, reduced', [
    ((0, 1, 2), 'ant\nbee\n', {}, ['ant', 'bee'], True),
    ((0, 1, 255), 'ant\nbee\n', {}, ['ant', 'bee'], False),
    ((1, 2), '', {}, ['class_1', 'class_2'], True),
    ((0, 1), '# ids\n1\tant\tx\n2\tbee\n', {}, ['ant', 'bee'], True),
    ((0, 1), '', dict(ignore_index=255), ['class_0', 'class_1'], False),
    ((0, 2), '', dict(reduce_zero_label=True), ['class_1', 'class_2'], True),
    ((0, 1, 7), 'ant\nbee\n', dict(ignore_index=7), ['ant', 'bee'], False)])
def test_ids_of_label_maps(ids, names, options, classes, reduced, tmp_path):
    maps(tmp_path, ids, names)
    data = read(tmp_path, 'maps', **options)
    assert (data.classes, data.reduce_zero_label) == (classes, reduced)


def test_label_maps_of_voc_are_those_of_its_lists(tmp_path):
    voc(tmp_path)
    data = read(tmp_path, 'maps', ignore_index=255)
    assert [[Path(sample.path).stem for sample in part] for part in (data.train, data.val)] == [
        ['6', '7'], ['8', '9']]
    assert data.classes == ['class_0', 'class_1', 'class_2']


def test_listed_classes_are_kept_in_their_order(tmp_path):
    coco(tmp_path)
    write(tmp_path / 'classes.txt', 'bee\n')
    data = read(tmp_path, 'coco')
    assert data.classes == ['bee']
    assert sum(len(sample.objects) for sample in data.train + data.val) == 5


def empty(root):
    shutil.rmtree(root)
    root.mkdir()


def wasp(root):
    for split in ('train', 'val'):
        coco(root, split, f'images/{split}')
    path = root / 'annotations/instances_val.json'
    path.write_text(path.read_text().replace('bee', 'wasp'))


def halve(path):
    path.write_bytes(path.read_bytes()[:-40])


FAULTS = {
    'empty folder': ('coco', empty, 'holds no image'),
    'no folder': ('coco', shutil.rmtree, 'does not exist'),
    'two layouts': ('coco', voc, 'two layouts at once, COCO PASCAL VOC move'),
    'other task': ('maps', lambda root: shutil.rmtree(root / 'images'), 'needs label maps'),
    'cut json': ('coco', lambda root: write(root / 'result.json', (
        root / 'result.json').read_text()[:-9]), 'result.json JSONDecodeError export'),
    'unlisted category': ('coco', lambda root: edit_json(root, lambda content: content[
        'categories'].pop()), 'result.json object 1 category_id export'),
    'no box': ('coco', lambda root: edit_json(root, lambda content: content['annotations'][
        0].update(bbox=[1, 2])), 'result.json object 0 bbox=[1, 2] export'),
    'missing image': ('coco', lambda root: (root / 'images/3.jpg').unlink(),
                      'result.json 3.jpg add'),
    'no objects': ('coco', lambda root: edit_json(root, lambda content: content.update(
        annotations=[])), 'no object annotate'),
    'unknown name': ('coco', lambda root: write(root / 'classes.txt', 'ant\nwasp\n'),
                     "classes.txt 'wasp' 'ant', 'bee'"),
    'gap in ids': ('coco', lambda root: write(root / 'classes.txt', '0 ant\n2 bee\n'),
                   'classes.txt ids gaps'),
    'own class': ('coco', wasp, "instances_val.json no category 'wasp' export"),
    'box outside': ('voc', lambda root: draw(root / 'JPEGImages/1.jpg', size=(10, 10)),
                    '1.xml bee (10, 10) fix'),
    'bad xml': ('voc', lambda root: write(root / 'Annotations/1.xml', '<annotation>'),
                '1.xml export'),
    'class index': ('yolo', lambda root: write(root / 'train/labels/1.txt', '2 .5 .5 .1 .1'),
                    'labels/1.txt:1: class 2 2 names classes.txt'),
    'pixels': ('yolo', lambda root: write(root / 'train/labels/1.txt', '1 20 20 8 8'),
               'labels/1.txt:1: 0..1 divide'),
    'captions': ('yolo', lambda root: write(root / 'train/labels/1.txt', 'a bee'),
                 "labels/1.txt:1: 'a' rows are class"),
    'broken yaml': ('yolo', lambda root: write(root / 'data.yaml', 'a: ['), 'data.yaml fix'),
    'cut map': ('maps', lambda root: write(root / 'annotations/training/3.png', 'x'),
                '3.png image fix'),
    'half a map': ('maps', lambda root: halve(root / 'annotations/training/3.png'),
                   '3.png image fix'),
    'no names': ('yolo', lambda root: (root / 'data.yaml').unlink(), 'labels classes.txt'),
    'unknown id': ('maps', lambda root: maps(root, (0, 1, 9)), '0.png id 9 classes.txt --ignore'),
    'two readings': ('maps', lambda root: (root / 'classes.txt').unlink(),
                     'ids 0 to 2 --reduce-zero-label --ignore-index 255'),
    'no map': ('maps', lambda root: (root / 'annotations/training/3.png').unlink(),
               'images/training/3.jpg label map add'),
    'colours': ('maps', lambda root: draw(root / 'annotations/training/3.png'),
                '3.png colour export'),
    'binary mask': ('maps', lambda root: maps(root, (0, 255)), '.png [0, 255] 1 for the object'),
    'empty class': ('classes', lambda root: (root / 'wasp').mkdir(), 'wasp without images delete'),
    'one class': ('classes', lambda root: shutil.rmtree(root / 'bee'), 'ant only class folder'),
}


@pytest.mark.parametrize('name', FAULTS)
def test_a_mistake_ends_in_one_line_with_file_and_remedy(name, tmp_path):
    kind, spoil, words = FAULTS[name]
    root = tmp_path / 'photos'
    getattr(own_data, kind)(root)
    read(root, kind)
    spoil(root)
    with pytest.raises(ValueError) as caught:
        read(root, kind)
    text = str(caught.value)
    assert '\n' not in text and len(text) < 400
    for word in ('photos', *words.split()):
        assert word in text, text
