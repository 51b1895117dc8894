"""Reads a folder of the user's own data, and recognises its layout.

    COCO            *.json with images, annotations and categories         for mmdet
    PASCAL VOC      *.xml of <annotation>, one per image                   for mmdet
    YOLO            *.txt of rows 'class x y w h' or 'class x1 y1 x2 ..'   for mmdet
    label maps      images/.. and annotations/.. with the same names       for mmseg
    class folders   CLASS/*.jpg, or train/CLASS/*.jpg                      for mmpretrain

Exports of Label Studio, CVAT and Roboflow are COCO files with other image paths: an image is
found by the end of its path. Every error is a one-line ValueError: the file, and what to do.
"""
from __future__ import annotations

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from lape_mm.wording import first_line, some

IMAGES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff')
SPLIT = re.compile(r'(train|val|test)(?:ing|id|idation)?(?:20\d\d)?')
IMAGE_DIRS = ('images', 'image', 'imgs', 'img', 'img_dir', 'jpegimages', 'leftimg8bit')
MAP_DIRS = ('annotations', 'masks', 'mask', 'labels', 'ann_dir', 'segmentationclass', 'gt')
CLASSES = ('classes.txt', 'obj.names', '_classes.csv')  # Roboflow's has ids
HELD_OUT = 5  # without a validation set, one image in so many becomes one
SAMPLED_MAPS = 1000
TASKS = {'mmdet': ('COCO', 'PASCAL VOC', 'YOLO'), 'mmseg': ('label maps',),
         'mmpretrain': ('class folders',)}


@dataclass
class Sample:
    """An image with its annotation."""

    path: str  # relative to the folder, with slashes
    split: str | None  # train, val or test
    label: int = -1  # in class folders
    label_map: tuple[str, ...] = ()  # folders of images and of maps, suffixes of both, name
    size: tuple[int, int] = (0, 0)  # width and height in pixels; only set with boxes
    objects: list[dict] = field(default_factory=list)  # COCO annotations; category_id is a label


@dataclass
class Data:
    """A folder's data; a label is an index of ``classes``."""

    root: Path
    layout: str  # one of TASKS
    classes: list[str]
    train: list[Sample]
    val: list[Sample]
    notes: list[str]  # what was found or left out, one line each
    reduce_zero_label: bool = False  # 0 in a label map is unlabelled, and k + 1 is class k


class Folder:
    """The visible files of a folder, sorted; paths are relative to it, with slashes."""

    def __init__(self, root: str | os.PathLike):
        self.root = Path(root).expanduser().resolve()
        self.notes: list[str] = []
        if not self.root.is_dir():
            raise ValueError(f'{root}: ' + (
                'a file; give the folder that holds it' if self.root.is_file() else
                'this folder does not exist'))
        paths = [Path(path).as_posix() for path in sorted(glob(
            '**', root_dir=self.root, recursive=True)) if not path.startswith('__MACOSX')]
        self.folders = [path for path in paths if (self.root / path).is_dir()]
        self.files = [path for path in paths if (self.root / path).is_file()]
        self.images = self.having(*IMAGES)
        if not self.images:
            raise ValueError(f'{root}: holds no image ({", ".join(IMAGES)})')
        self.by_name = defaultdict(list)
        for path in self.images:
            for name in (Path(path).name, Path(path).stem):
                self.by_name[name].append(path)

    def having(self, *suffixes: str) -> list[str]:
        """Files with one of the suffixes."""
        return [path for path in self.files if path.lower().endswith(suffixes)]

    def find_image(self, name: str, near: str) -> str | None:
        """The image that the annotation file ``near`` calls ``name``, often a foreign path."""
        parts = unquote(name.replace('\\', '/')).split('/')

        def fit(path: str) -> tuple:
            ends = os.path.commonprefix([path.split('/')[::-1], parts[::-1]])
            return len(ends), split_of(path) == split_of(near), \
                len(os.path.commonprefix([path, near]))
        return max(self.by_name.get(parts[-1], []), key=fit, default=None)

    def open(self, path: str, read: bool = False) -> Image.Image:
        """An image, and whether to read its pixels."""
        try:
            image = Image.open(self.root / path)
            if read:
                image.load()
            return image
        except OSError as error:
            raise ValueError(f'{self.root / path}: cannot be read as an image; mend or delete '
                             'it') from error

    def size(self, path: str) -> tuple[int, int]:
        """Width and height of an image in pixels, after EXIF rotation."""
        with self.open(path) as image:
            return image.size[::-1] if image.getexif().get(0x0112, 1) >= 5 else image.size

    def listed(self) -> tuple[str, list[str], int | None]:
        """The file that lists classes ('' for none), their names, and their first id."""
        path = next((path for name in CLASSES for path in self.files
                     if Path(path).name == name), '')
        lines = (self.root / path).read_text('utf-8', 'replace').splitlines() if path else []
        names = [line.strip() for line in lines
                 if line.strip(' #') and not line.startswith(('#', 'Pixel'))]
        rows = [re.match(r'(\d+)\s*[\s,:]\s*([^\t]+)', line) for line in names]
        first = None
        if rows and all(rows):
            ids = [int(row[1]) for row in rows if row]
            names = [row[2].strip() for row in rows if row]
            first = ids[0]
            if first > 1 or ids != [*range(first, first + len(ids))]:
                names = []
        if path and len({*names}) < max(1, len(names)):
            raise ValueError(f'{self.root / path}: expected one class per line, none twice; '
                             'ids before them start at 0 or 1 and have no gaps')
        return path, names, first

    def voc_splits(self, task: str) -> dict[str, str]:
        """Name of an image -> split, as in ImageSets/TASK/{train,val,test}.txt."""
        return {line.split()[0]: split for split in ('test', 'val', 'train')
                for path in self.files if path.endswith(f'ImageSets/{task}/{split}.txt')
                for line in (self.root / path).read_text().splitlines() if line.strip()}


def split_of(path: str) -> str | None:
    """The split named by the innermost folder, or by a word in a json file's name."""
    *folders, name = path.lower().split('/')
    words = re.split(r'[^a-z0-9]+', name) if name.endswith('.json') else []
    return next((found[1] for word in [*words, *folders[::-1]]
                 if (found := SPLIT.fullmatch(word))), None)


def read_folder(root: str | os.PathLike, toolbox: str, *, ignore_index: int | None = None,
                reduce_zero_label: bool = False) -> Data:
    """Reads a folder for 'mmdet', 'mmseg' or 'mmpretrain'.

    Args:
        root: the folder.
        toolbox: determines which layouts are accepted.
        ignore_index: the id to ignore in label maps; 0 is then a class.
        reduce_zero_label: 0 in label maps is unlabelled, and classes start at 1.

    Raises:
        ValueError: the folder is empty, has no known layout or several, or has a bad file.
    """
    folder = Folder(root)
    found = {layout: files for layout, (find, _) in LAYOUTS.items() if (files := find(folder))}
    if not found and all(map(class_of, folder.images)):
        found = {'class folders': folder.images}
    layouts = [layout for layout in TASKS[toolbox] if layout in found]
    if not layouts:
        jsons = '' if found else ''.join(f'; {path} is no COCO file' for path in
                                         folder.having('.json')[:1])
        raise ValueError(f'{root}: holds {" and ".join(found) or "no known layout"}{jsons}; '
                         f'this config needs {" or ".join(TASKS[toolbox])}, see '
                         'docs/your_own_data.md')
    if len(layouts) > 1:
        raise ValueError(f'{root}: two layouts at once, ' + ' and '.join(
            f'{one} ({found[one][0]})' for one in layouts) + '; move all but one elsewhere')
    layout, = layouts
    if layout == 'label maps':
        return read_maps(folder, found[layout], ignore_index, reduce_zero_label)
    if layout == 'class folders':
        return read_classes(folder)
    data = assemble(folder, layout, *number_objects(folder, *LAYOUTS[layout][1](
        folder, found[layout])))
    for part in (data.train, data.val):
        if not any(sample.objects for sample in part):
            raise ValueError(f'{root}: {part[0].path} and the {len(part) - 1} others of its split '
                             'have no objects; annotate some')
    used = {one['category_id'] for sample in data.train for one in sample.objects}
    if idle := [name for index, name in enumerate(data.classes) if index not in used]:
        data.notes.append(f'without an object in the training images: {some(idle)}')
    return data


def number_objects(folder: Folder, classes: list[str], samples: list[Sample]) \
        -> tuple[list[str], list[Sample]]:
    """Turns the objects' class names into labels; classes.txt may select and order the classes."""
    path, kept, _ = folder.listed()
    kept = kept or classes
    if unknown := [name for name in kept if name not in classes]:
        raise ValueError(f'{folder.root / path}: no annotation names {some(unknown)}; the classes '
                         f'are {some(classes, 8)}')
    if left := [name for name in classes if name not in kept]:
        folder.notes.append(f'left out, because {path} does not list them: {some(left)}')
    for sample in samples:
        sample.objects = [dict(one, category_id=kept.index(one['category_id']))
                          for one in sample.objects if one['category_id'] in kept]
    return kept, samples


def assemble(folder: Folder, layout: str, classes: list[str], samples: Sequence[Sample],
             reduce: bool = False) -> Data:
    """Splits the samples into training and validation set."""
    parts: dict[str | None, list[Sample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample.path):
        parts[sample.split].append(sample)
    train, val = parts['train'] + parts[None], parts['val'] or parts['test']
    how = f"the folder's {'validation' if parts['val'] else 'test'} set"
    if not train:
        raise ValueError(f'{folder.root}: has {how} and no training images; call the folder or '
                         'file of the others "train"')
    if not val:
        how = f'one in {HELD_OUT}, picked by a hash of the path'
        held = hold_out(folder, train)
        val = [sample for sample in train if sample.path in held]
        train = [sample for sample in train if sample.path not in held]
    return Data(folder.root, layout, classes, train, val, [
        f'{folder.root}: {layout}, {len(classes)} classes: {some(classes, 8, str)}',
        f'{len(train)} images for training, {len(val)} for validation ({how})',
        *folder.notes], reduce)


def hold_out(folder: Folder, samples: Sequence[Sample]) -> set[str]:
    """Picks a share of each class by hashes of the paths, so that later images do not change it."""
    groups: dict[int, dict[int, str]] = defaultdict(dict)  # label -> hash -> path
    for sample in samples:
        number = int(hashlib.sha256(sample.path.encode()).hexdigest()[:12], 16)
        groups[sample.label][number] = sample.path
    held: set[str] = set()
    for group in groups.values():
        if len(group) < 2:
            raise ValueError(f'{folder.root / min(group.values())}: the only image of its kind, '
                             'but training and validation need one each; add images')
        chosen = [path for number, path in group.items() if number % HELD_OUT == 0]
        held.update(chosen if 0 < len(chosen) < len(group) else [group[min(group)]])
    return held


def find_coco(folder: Folder) -> list[str]:
    """COCO files; only those called instances_*, if there are any."""
    keys = (b'"images"', b'"annotations"', b'"categories"')
    found = [path for path in folder.having('.json')
             if all(key in (folder.root / path).read_bytes() for key in keys)]
    proper = [path for path in found if re.search(r'instances_[a-zA-Z]+(20\d\d)?\.json$', path)]
    if proper and len(proper) < len(found):
        folder.notes.append(f'left out: {some([path for path in found if path not in proper])}')
    return proper or found


def read_coco(folder: Folder, files: Sequence[str]) -> tuple[list[str], list[Sample]]:
    """Classes and samples of COCO files; a file's name gives the split of its images."""
    classes: dict[str, None] = {}
    samples: dict[str, Sample] = {}
    for file in sorted(files, key=lambda file: split_of(file) not in (None, 'train')):
        where = folder.root / file
        try:
            content = json.loads(where.read_text('utf-8'))
            used = {entry.get('category_id') for entry in content['annotations']}
            # Roboflow lists the group of all classes as a class of its own
            groups = {entry.get('supercategory') for entry in content['categories']}
            names = {entry['id']: entry['name'] for entry in content['categories']
                     if entry['id'] or entry['id'] in used or entry['name'] not in groups}
            images = {entry['id']: Sample(
                folder.find_image(entry['file_name'], file) or '', split_of(file),
                size=(entry.get('width'), entry.get('height'))) for entry in content['images']}
            lacking = [entry['file_name'] for entry in content['images']
                       if not images[entry['id']].path]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f'{where}: not a whole COCO file ({type(error).__name__}: {error}); '
                             'export it again') from error
        if lacking:
            raise ValueError(f'{where}: {some(lacking, 1)} of {len(images)} images are not in '
                             f'{folder.root}; put them there')
        if new := [name for name in names.values() if classes and name not in classes]:
            if split_of(file) not in (None, 'train'):
                raise ValueError(f'{where}: {some(new)} are not among the categories of the '
                                 'training file; export both with the same classes')
        for sample in images.values():
            if samples.setdefault(sample.path, sample) is not sample:
                raise ValueError(f'{where}: {sample.path} is listed more than once in the '
                                 'annotation files; keep one entry, and name each file after its '
                                 'split, such as train.json')
            if not all(sample.size):  # Label Studio may not know it
                sample.size = folder.size(sample.path)
        for entry in content['annotations']:
            try:
                left, top, width, height = entry['bbox']
                box = rectangle(names[entry['category_id']], left, top, width, height)
                images[entry['image_id']].objects.append(dict(
                    box, area=entry.get('area') or box['area'],
                    iscrowd=int(entry.get('iscrowd') or 0),
                    segmentation=entry.get('segmentation')))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f'{where}: object {entry.get("id")} has category_id='
                    f'{entry.get("category_id")!r}, image_id={entry.get("image_id")!r}, bbox='
                    f'{entry.get("bbox")!r}, expected ids that the file lists and [x, y, width, '
                    'height]; export it again') from error
        classes.update(dict.fromkeys(names.values()))
    return [*classes], [*samples.values()]


def rectangle(name: str, left: float, top: float, width: float, height: float,
              ignored: bool = False) -> dict:
    """A COCO annotation of a box in pixels, with the class's name for its category_id."""
    return dict(category_id=name, bbox=[left, top, width, height], area=width * height,
                iscrowd=int(ignored), segmentation=None)


def find_voc(folder: Folder) -> list[str]:
    """Annotation files of PASCAL VOC."""
    return [path for path in folder.having('.xml')
            if b'<annotation' in (folder.root / path).read_bytes()[:300]]


def read_voc(folder: Folder, files: Sequence[str]) -> tuple[list[str], list[Sample]]:
    """Classes and samples; coordinates are taken as written, 'difficult' objects are ignored."""
    lists, samples = folder.voc_splits('Main'), []
    for file in files:
        where, stem = folder.root / file, Path(file).stem
        if lists and stem not in lists:
            continue
        try:
            tree: Any = ElementTree.parse(where).getroot()
            called = str(tree.findtext('filename'))
            boxes = [(str(node.findtext('name')).strip(), node.findtext('difficult') == '1', [
                float(node.findtext(f'bndbox/{side}')) for side in (
                    'xmin', 'ymin', 'xmax', 'ymax')]) for node in tree.iter('object')]
        except (ElementTree.ParseError, TypeError, ValueError) as error:
            raise ValueError(f'{where}: not a PASCAL VOC annotation ({error}); export it '
                             'again') from error
        names = stem + Path(called).suffix, called, stem
        image = next(filter(None, (folder.find_image(name, file) for name in names)), None)
        if not image:
            raise ValueError(f'{where}: its image {called} is not in {folder.root}; put it there')
        sample = Sample(image, lists.get(stem) or split_of(image), size=folder.size(image))
        for name, ignored, (left, top, right, bottom) in boxes:
            if not (left < right <= sample.size[0] + 1 and top < bottom <= sample.size[1] + 1):
                raise ValueError(f'{where}: a box of {name} is empty or outside the image of '
                                 f'{sample.size} pixels; mend or delete it')
            sample.objects.append(rectangle(name, left, top, right - left, bottom - top, ignored))
        samples.append(sample)
    return sorted({one['category_id'] for sample in samples for one in sample.objects}), samples


def yolo_label(folder: Folder, image: str) -> str:
    """labels/train/a.txt for images/train/a.jpg, or a.txt beside it; '' if neither exists."""
    beside = f'{os.path.splitext(image)[0]}.txt'
    other = re.sub(r'(^|.*/)images/', r'\1labels/', beside)
    return next((path for path in (other, beside) if (folder.root / path).is_file()), '')


def find_yolo(folder: Folder) -> list[str]:
    """Label files of YOLO."""
    return [label for image in folder.images if (label := yolo_label(folder, image))] \
        if folder.having('.txt') else []


def read_yolo(folder: Folder, files: Sequence[str]) -> tuple[list[str], list[Sample]]:
    """Classes and samples; an image without a label file has no objects."""
    import yaml  # type: ignore[import-untyped]  # timm requires it too
    names: Any = None
    for path in folder.having('.yaml', '.yml'):
        try:
            content = yaml.safe_load((folder.root / path).read_text('utf-8', 'replace'))
        except yaml.YAMLError as error:
            raise ValueError(f'{folder.root / path}: not a YAML file ({first_line(error)}); mend '
                             'or delete it') from error
        names = names or isinstance(content, dict) and content.get('names')
    if isinstance(names, dict):
        names = [names.get(index, f'class_{index}') for index in range(max(names) + 1)]
    classes, samples = [*map(str, names or folder.listed()[1])], []
    if not classes:
        raise ValueError(f'{folder.root / files[0]}: class numbers without names; write '
                         f'{folder.root}/classes.txt, one name per line')
    for path in folder.images:
        sample = Sample(path, split_of(path), size=folder.size(path))
        samples.append(sample)
        where = folder.root / (yolo_label(folder, path) or os.devnull)
        for number, row in enumerate(where.read_text('utf-8', 'replace').splitlines(), 1):
            try:
                if row.strip():
                    sample.objects.append(yolo_object(row.split(), classes, sample.size))
            except ValueError as error:
                raise ValueError(f'{where}:{number}: {error}') from error
    return classes, samples


def yolo_object(row: Sequence[str], classes: Sequence[str], size: tuple[int, int]) -> dict:
    """Converts a row to a COCO annotation."""
    try:
        label, *values = map(float, row)
    except ValueError as error:
        raise ValueError(f'{error}; write rows of numbers, or delete the file') from error
    if len(values) != 4 and (len(values) < 6 or len(values) % 2):
        raise ValueError(f'{len(row)} numbers; write class x y width height, or a class and the '
                         'points of a polygon')
    if label not in range(len(classes)):
        raise ValueError(f'class {label:g}, but there are {len(classes)} names, 0 to '
                         f'{len(classes) - 1}; mend the row, or name the class in classes.txt or '
                         'data.yaml')
    if not all(-.01 <= value <= 1.01 for value in values):
        raise ValueError('coordinates beyond 0..1; divide pixels by the size of the image')
    name, points = classes[int(label)], np.clip(values, 0, 1).reshape(-1, 2) * size
    if len(points) == 2:
        centre, sides = points
        return rectangle(name, *(centre - sides / 2).tolist(), *sides.tolist())
    x, y = points.T
    return dict(rectangle(name, *points.min(0).tolist(), *np.ptp(points, 0).tolist()),
                area=abs(float(x @ np.roll(y, 1) - y @ np.roll(x, 1))) / 2,
                segmentation=[points.ravel().tolist()])


def find_maps(folder: Folder) -> list[Sample]:
    """Images with a label map of the same name, in a folder of `MAP_DIRS` or as NAME_mask.png."""
    files, found = {*folder.having('.png')}, []
    kinds = sorted({name for path in folder.folders
                    if (name := Path(path).name).lower() in MAP_DIRS})
    for image in folder.images:
        stem, suffix = os.path.splitext(image)
        *parts, name = stem.split('/')
        places = [('/'.join(parts), '/'.join(parts), name)]
        places += [('/'.join([*parts[:level], part]), '/'.join([*parts[:level], kind]),
                    '/'.join([*parts[level + 1:], name]))
                   for level, part in enumerate(parts) if part.lower() in IMAGE_DIRS
                   for kind in kinds]
        found += [Sample(image, split_of(image), label_map=(images, maps, suffix, end, name))
                  for images, maps, name in places for end in ('.png', '_mask.png')
                  if (path := f'{maps}/{name}{end}'.lstrip('/')) in files and path != image][:1]
    return found


def read_maps(folder: Folder, samples: Sequence[Sample], ignored: int | None, reduce: bool) -> Data:
    """Reads the ids in a sample of the label maps, and decides which are classes."""
    if lists := folder.voc_splits('Segmentation'):
        samples = [replace(sample, split=lists[stem]) for sample in samples
                   if (stem := Path(sample.path).stem) in lists]
    paired = {sample.path for sample in samples}
    places = tuple({f'{sample.label_map[0]}/' for sample in samples} - {'/'})
    if lacking := [path for path in folder.images
                   if not lists and path not in paired and path.startswith(places)]:
        raise ValueError(f'{folder.root / lacking[0]}: it and {len(lacking) - 1} other images have '
                         f'no label map; add {samples[0].label_map[1]}/NAME.png')
    first: dict[int, str] = {}  # id -> a map that has it
    for sample in samples[::-(-len(samples) // SAMPLED_MAPS)]:
        _, maps, _, end, name = sample.label_map
        path = f'{maps}/{name}{end}'.lstrip('/')
        with folder.open(path, read=True) as picture:
            ids = np.asarray(picture)
        if ids.ndim != 2:
            raise ValueError(f'{folder.root / path}: a colour picture, expected one channel of '
                             'class ids; export indexed or grayscale masks')
        for value in np.unique(ids).tolist():
            first.setdefault(value, str(folder.root / path))
    classes, reduce = class_ids(folder, first, ignored, reduce)
    folder.notes.append('0 in the label maps is ' + (
        'unlabelled, classes begin at 1' if reduce else 'a class'))
    return assemble(folder, 'label maps', classes, samples, reduce)


def class_ids(folder: Folder, first: dict[int, str], ignored: int | None, reduce: bool) \
        -> tuple[list[str], bool]:
    """Names of the classes, and whether 0 is unlabelled; see `read_folder` and `read_maps`."""
    source, names, begin = folder.listed()
    ids, count = sorted({*first} - {255, ignored}), len(names)
    top = ids[-1] if ids else 0
    if not top:
        raise ValueError(f'{next(iter(first.values()))}: this and all other label maps hold only '
                         f'{sorted(first)}; write class ids, such as 1 for the object in a mask')
    if begin is not None:
        reduce = reduce or begin == 1
        names = names[1:] if reduce and begin == 0 else names
    elif ignored is None and not reduce:
        reduce = top == count or not (count or 0 in ids)
        if not reduce and (not count or top < count - 1 or top < count and 0 not in ids):
            raise ValueError(
                f'{folder.root}: the label maps hold ids {ids[0]} to {top}, and two readings fit: '
                f'0 is unlabelled and 1 to {count or top} are classes (--reduce-zero-label), or 0 '
                f'to {(count or top + 1) - 1} are classes (--ignore-index 255)')
    names = names or [f'class_{index}' for index in range(reduce, top + 1)]
    if beyond := [value for value in ids if value >= len(names) + reduce]:
        raise ValueError(f'{first[beyond[0]]}: has id {beyond[0]}, but {source} names ids '
                         f'{int(reduce)} to {len(names) + reduce - 1}; add its name, or pass '
                         f'--ignore-index {beyond[0]} if it is no class')
    return names, reduce


def class_of(path: str) -> str:
    """The class of an image: the first folder of its path, or the next after a split."""
    *folders, _ = path.split('/')
    return next(iter(folders[bool(folders and split_of(f'{folders[0]}/')):]), '')


def read_classes(folder: Folder) -> Data:
    """Reads class folders, in the order of classes.txt, else by name."""
    source, classes, _ = folder.listed()
    classes = classes or sorted({class_of(f'{path}/') for path in folder.folders} - {''})
    samples = [Sample(path, split_of(path.split('/')[0] + '/'), classes.index(class_of(path)))
               for path in folder.images if class_of(path) in classes]
    used = {sample.label for sample in samples if sample.split in (None, 'train')}
    if idle := [name for index, name in enumerate(classes) if index not in used]:
        raise ValueError(f'{folder.root / idle[0]}: a class without training images; add some, or '
                         f'delete the folder {f"and its line in {source}" if source else ""}')
    if len(classes) < 2:
        raise ValueError(f'{folder.root / classes[0]}: the only class folder; a classifier needs '
                         'two classes')
    return assemble(folder, 'class folders', classes, samples)


LAYOUTS: dict[str, tuple[Any, Any]] = {
    'COCO': (find_coco, read_coco), 'PASCAL VOC': (find_voc, read_voc),
    'YOLO': (find_yolo, read_yolo), 'label maps': (find_maps, read_maps)}


def write_index(data: Data, folder: Path) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """Writes the files that the toolboxes' data sets read: COCO files, or lists of names.

    Returns:
        split -> (path, folders and suffixes of `Sample.label_map`), one entry per such combination.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, list[tuple[str, tuple[str, ...]]]] = dict(train=[], val=[])
    for split, samples in (('train', data.train), ('val', data.val)):
        for number, place in enumerate(dict.fromkeys(one.label_map[:-1] for one in samples)):
            if data.layout in TASKS['mmdet']:
                end, text = '.json', json.dumps(coco_content(data, samples))
            else:
                end, text = '.txt', ''.join(
                    f'{one.label_map[-1]}\n' if place else f'{one.path} {one.label}\n'
                    for one in samples if one.label_map[:-1] == place)
            path = f'{folder.resolve()}/{split}{number or ""}{end}'
            part = Path(f'{path}.{os.getpid()}')  # every process of a run writes it
            part.write_text(text, 'utf-8')
            part.replace(path)
            written[split].append((path, place))
    return written


def coco_content(data: Data, samples: Sequence[Sample]) -> dict:
    """The content of a COCO file; category k + 1 is class k."""
    objects = [(number, {key: value for key, value in one.items() if value is not None})
               for number, sample in enumerate(samples, 1) for one in sample.objects]
    return dict(
        images=[dict(id=number, file_name=sample.path, width=sample.size[0], height=sample.size[1])
                for number, sample in enumerate(samples, 1)],
        categories=[dict(id=number, name=name) for number, name in enumerate(data.classes, 1)],
        annotations=[dict(one, id=index, image_id=number, category_id=one['category_id'] + 1)
                     for index, (number, one) in enumerate(objects, 1)])
