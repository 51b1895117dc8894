"""The built-in data set: equal settings give equal bytes, and the layouts are what they claim."""
import json
from contextlib import nullcontext
from pathlib import Path

import cv2
import numpy as np
import pytest

from lape_mm.datasets import scenes
from lape_mm.datasets.drawing import SUPERSAMPLING

SMALL = dict(image_size=(72, 96), num_train=14, num_val=12)


def files(root):
    return {path.relative_to(root).as_posix(): path.read_bytes()
            for path in sorted(Path(root).rglob('*')) if path.is_file()}


@pytest.fixture(scope='module', params=scenes.LAYOUTS)
def drawn(request, tmp_path_factory):
    return request.param, scenes.prepare(
        request.param, tmp_path_factory.mktemp(request.param) / 'set', **SMALL)


def test_same_settings_same_bytes(drawn, tmp_path):
    """A longer set begins with the same pictures; of another seed, all differ."""
    layout, root = drawn
    assert files(scenes.prepare(layout, tmp_path / 'again', **SMALL)) == files(root)
    more, other = (files(scenes.prepare(layout, tmp_path / name, **{**SMALL, **changes}))
                   for name, changes in (('more', dict(num_train=17, num_val=14)),
                                         ('other', dict(seed=1))))
    few = {name: data for name, data in files(root).items() if not name.endswith('.json')}
    assert few.items() <= more.items() and len(more) > len(few)
    pictures = [name for name in few if name.lower().endswith(('.jpg', '.jpeg'))]
    assert len(pictures) == SMALL['num_train'] + SMALL['num_val']
    assert all(few[name] != other[name] for name in pictures)


def test_scene_holds_what_the_settings_say():
    settings = dict(layout='coco', image_size=(160, 160), seed=3)
    counts, touching = [], 0
    for index in range(40):
        scene = scenes.scene('train', index, settings)
        assert scene.image.shape == (160, 160, 3) and scene.image.dtype == np.uint8
        assert scene.labels[0] == index % len(scenes.CLASSES)
        seen = np.bincount(scene.owner.ravel(), minlength=len(scene.labels) + 1)
        assert len(seen) == len(scene.labels) + 1
        # The smallest object, a squeezed star, at half visibility: some 150 pixels.
        assert (seen[1:] >= 100 * SUPERSAMPLING ** 2).all()
        counts.append(len(scene.labels))
        grown = [cv2.dilate((scene.owner == k).astype(np.uint8), np.ones((5, 5)))
                 for k in range(1, len(scene.labels) + 1)]
        touching += sum(grown).max() > 1
    assert set(counts) == {1, 2, 3, 4}
    assert touching >= 8


def test_colours_do_not_tell_the_class():
    """The best linear guess from each object's mean colour stays near chance."""
    settings = dict(layout='imagenet', image_size=(64, 64), seed=0)
    colors, labels = [], []
    for index in range(360):
        scene = scenes.scene('train', index, settings)
        seen = cv2.resize((scene.owner == 1).astype(np.uint8), scene.image.shape[:2],
                          interpolation=cv2.INTER_NEAREST)
        colors.append([1, *scene.image[seen > 0].mean(axis=0)])
        labels.append(scene.labels[0])
    colors, targets = np.array(colors), np.eye(len(scenes.CLASSES))[labels]
    weights = np.linalg.lstsq(colors[:240], targets[:240], rcond=None)[0]
    guess = (colors[240:] @ weights).argmax(axis=1)
    assert np.mean(guess == labels[240:]) < 0.32


@pytest.fixture(scope='module')
def coco_root(tmp_path_factory):
    return scenes.prepare('coco', tmp_path_factory.mktemp('coco') / 'set', num_train=40, num_val=12)


@pytest.mark.parametrize('split', scenes.SPLITS)
def test_coco_polygons_give_back_the_masks(coco_root, split):
    coco_api = pytest.importorskip('pycocotools.coco', reason='pycocotools is not installed')
    coco = coco_api.COCO(str(coco_root / f'annotations/instances_{split}2017.json'))
    settings = json.loads((coco_root / 'scenes.json').read_text())
    assert coco.getCatIds(catNms=list(scenes.CLASSES)) == list(scenes.COCO_CATEGORY_IDS)
    assert {ann['category_id'] for ann in coco.anns.values()} == set(scenes.COCO_CATEGORY_IDS)
    assert len(coco.imgs) == settings[f'num_{split}']
    for index, image in enumerate(coco.imgs.values()):
        assert cv2.imread(str(coco_root / f'{split}2017' / image['file_name'])).shape[:2] == (
            image['height'], image['width'])
        scene = scenes.scene(split, index, settings)
        anns = coco.loadAnns(coco.getAnnIds(image['id']))
        assert [scenes.COCO_CATEGORY_IDS[label] for label in scene.labels] == [
            ann['category_id'] for ann in anns]
        for number, ann in enumerate(anns, 1):
            mask = coco.annToMask(ann).astype(bool)
            truth = cv2.resize((scene.owner == number).astype(np.float32), mask.shape[::-1],
                               interpolation=cv2.INTER_AREA) >= 0.5
            assert (mask & truth).sum() / (mask | truth).sum() > 0.9
            assert ann['iscrowd'] == 0 and all(len(part) >= 6 for part in ann['segmentation'])
            assert ann['area'] == pytest.approx(mask.sum(), rel=0.08)
            rows, columns = np.nonzero(mask.any(axis=1))[0], np.nonzero(mask.any(axis=0))[0]
            left, top, width, height = ann['bbox']
            # Tips of stars and triangles that are thinner than a pixel are in no mask.
            assert np.allclose([left, top, left + width, top + height],
                               [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1], atol=2.5)
            assert 0 <= left and left + width <= image['width']
            assert 0 <= top and top + height <= image['height']


@pytest.fixture(scope='module')
def ade_root(tmp_path_factory):
    return scenes.prepare('ade', tmp_path_factory.mktemp('ade') / 'set', num_train=12, num_val=12)


@pytest.mark.parametrize(('split', 'folder'), [('train', 'training'), ('val', 'validation')])
def test_ade_label_maps(ade_root, split, folder):
    images = sorted((ade_root / 'images' / folder).iterdir())
    maps = sorted((ade_root / 'annotations' / folder).iterdir())
    assert [path.stem for path in images] == [path.stem for path in maps]
    assert {path.suffix for path in images} == {'.jpg'}
    seen, unlabelled, settings = set(), 0, json.loads((ade_root / 'scenes.json').read_text())
    for index, path in enumerate(maps):
        labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        assert labels.dtype == np.uint8 and labels.shape == (160, 160)
        scene = scenes.scene(split, index, settings)
        assert {label + 1 for label in scene.labels} <= set(np.unique(labels))
        seen |= set(np.unique(labels))
        unlabelled += np.mean(labels == 0)
    assert seen == set(range(len(scenes.ADE_CLASSES) + 1))
    assert 0 < unlabelled / len(maps) < 0.05
    assert (ade_root / 'classes.txt').read_text().split() == [*scenes.ADE_CLASSES]


def test_second_call_reuses(tmp_path, capsys):
    root = scenes.prepare('imagenet', tmp_path / 'deep' / 'set', **SMALL)
    before = {path: path.stat().st_mtime_ns for path in root.rglob('*')}
    assert 'drew' in capsys.readouterr().out
    # a list instead of a tuple
    again = scenes.prepare('imagenet', tmp_path / 'deep' / 'set', image_size=[72, 96],
                           num_train=14, num_val=12)
    assert again == root and {path: path.stat().st_mtime_ns for path in root.rglob('*')} == before
    assert 'already' in capsys.readouterr().out
    assert [path.name for path in root.parent.iterdir()] == ['set']


def test_other_settings_are_refused(tmp_path):
    root = scenes.prepare('imagenet', tmp_path / 'set', **SMALL)
    before = files(root)
    with pytest.raises(ValueError, match='seed is 0 there, 5 here.*name another folder'):
        scenes.prepare('imagenet', root, **SMALL, seed=5)
    with pytest.raises(ValueError, match='layout is'):
        scenes.prepare('ade', root, **SMALL)
    assert files(root) == before


def test_foreign_and_damaged_folders_are_left_alone(tmp_path):
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'thesis.txt').write_text('years of work')
    (tmp_path / 'file').write_text('')
    for name in ('mine', 'file'):
        with pytest.raises(FileExistsError, match='scenes.json is missing'):
            scenes.prepare('imagenet', tmp_path / name, **SMALL)
    assert files(tmp_path) == {'mine/thesis.txt': b'years of work', 'file': b''}
    root = scenes.prepare('imagenet', tmp_path / 'set', **SMALL)
    (root / 'scenes.json').write_text('{')
    with pytest.raises(FileExistsError, match='unreadable'):
        scenes.prepare('imagenet', root, **SMALL)


def test_an_empty_folder_and_a_link_to_one_are_filled(tmp_path):
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'link').symlink_to(tmp_path / 'empty')
    root = scenes.prepare('imagenet', tmp_path / 'link', **SMALL)
    assert root == (tmp_path / 'empty').resolve() and (tmp_path / 'link' / 'scenes.json').is_file()


@pytest.mark.parametrize('seed', [0, 1])
def test_the_slower_of_two_processes_uses_the_winners_folder(tmp_path, seed):
    """The other process finishes while this one draws."""
    won = {}

    def other_process_wins(numbers):
        if not won:
            root = scenes.prepare('imagenet', tmp_path / 'set', **SMALL, seed=seed)
            won.update(files(root))
        return numbers
    with nullcontext() if seed == 0 else pytest.raises(ValueError, match='seed is 1 there, 0 here'):
        scenes.prepare('imagenet', tmp_path / 'set', **SMALL, track=other_process_wins)
    assert files(tmp_path / 'set') == won and len(list(tmp_path.iterdir())) == 1


def test_a_failure_leaves_nothing(tmp_path):
    def fail(numbers):
        raise OSError('disk full')
    with pytest.raises(OSError, match='disk full'):
        scenes.prepare('coco', tmp_path / 'set', **SMALL, track=fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(('bad', 'message'), [
    (dict(layout='voc'), "layout must be one of coco, ade, imagenet, got 'voc'"),
    (dict(image_size=16), r'image_size of 32 or more.* got \[16, 16\]'),
    (dict(num_train=5), r'of 6 or more, got .* \[5, 80\]')])
def test_bad_arguments(tmp_path, bad, message):
    with pytest.raises(ValueError, match=message):
        scenes.prepare(**{'layout': 'coco', 'root': tmp_path / 'set', **bad})
    assert list(tmp_path.iterdir()) == []


def test_command_line(tmp_path, capsys):
    command = ['imagenet', str(tmp_path / 'set'), '--num-train', '6', '--num-val', '6']
    scenes.main(command)
    assert 'drew the imagenet set (6 train, 6 val)' in capsys.readouterr().out
    with pytest.raises(SystemExit):
        scenes.main([*command[:-1], '8'])
    assert 'other settings' in capsys.readouterr().err
