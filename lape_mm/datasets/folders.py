"""Reads a folder of the user's own data, and recognises its layout.

    COCO            *.json with images, annotations and categories         for mmdet
    PASCAL VOC      *.xml of <annotation>, one per image                   for mmdet
    YOLO            *.txt of rows 'class x y w h' or 'class x1 y1 x2 ..'   for mmdet
    label maps      images/.. and annotations/.. with the same names       for mmseg
    class folders   CLASS/*.jpg, or train/CLASS/*.jpg                      for mmpretrain

COCO files from Label Studio, CVAT and Roboflow list images under other paths, so an image is
found by the end of its path. Every error is a one-line ValueError with the file and what to do.
"""
from __future__ import annotations

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from lape_mm.wording import first_line, some

IMAGES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff')
SPLIT = re.compile(r'(train|val|test)(?:ing|id|idation)?(?:20\d\d)?')
IMAGE_DIRS = ('images', 'image', 'imgs', 'img', 'img_dir', 'jpegimages', 'leftimg8bit')
MAP_DIRS = ('annotations', 'masks', 'mask', 'labels', 'ann_dir', 'segmentationclass', 'gt')
CLASSES = ('classes.txt', 'obj.names', '_classes.csv')  # Roboflow's _classes.csv has ids
HELD_OUT = 5  # without a validation set, one image in this many is held out
SAMPLED_MAPS = 1000
TASKS = {'mmdet': ('COCO', 'PASCAL VOC', 'YOLO'), 'mmseg': ('label maps',),
         'mmpretrain': ('class folders',)}


@dataclass
class Sample:
    """An image with its annotation."""

    path: str  # relative to the folder, with slashes
    split: str | None  # train, val or test
    label: int = -1  # in class folders
    label_map: tuple[str, ...] = ()  # image folder, map folder, their suffixes, name
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


class Fault(ValueError):
    """A file, what is wrong with it, and what to do, in one line."""


@contextmanager
def blame(path: Path | str, remedy: str) -> Iterator[None]:
    """Turns any error into a `Fault` that names the file and the remedy."""
    try:
        yield
    except Fault:
        raise
    except Exception as error:
        text = first_line(error, kind=type(error) is not ValueError)
        raise Fault(f'{path}: {text}; {remedy}') from error


class Folder:
    """The visible files of a folder, sorted; paths are relative to it, with slashes."""

    def __init__(self, root: str | os.PathLike):
        self.root = Path(root).expanduser().resolve()
        self.notes: list[str] = []
        if not self.root.is_dir():
            raise Fault(f'{root}: does not exist, or is a file; give a folder')
        paths = [Path(path).as_posix() for path in sorted(glob(
            '**', root_dir=self.root, recursive=True)) if not path.startswith('__MACOSX')]
        self.folders = [path for path in paths if (self.root / path).is_dir()]
        self.files = [path for path in paths if (self.root / path).is_file()]
        self.images = self.having(*IMAGES)
        if not self.images:
            raise Fault(f'{root}: holds no image ({", ".join(IMAGES)})')
        self.by_name = defaultdict(list)
        for path in self.images:
            for name in (Path(path).name, Path(path).stem):
                self.by_name[name].append(path)

    def having(self, *suffixes: str, holding: Sequence[bytes] = ()) -> list[str]:
        """Files that have one of the suffixes and contain all of these byte strings."""
        return [path for path in self.files if path.lower().endswith(suffixes)
                and all(part in (self.root / path).read_bytes() for part in holding)]

    def find_image(self, name: str, near: str) -> str:
        """The image that the annotation file ``near`` lists as ``name``, maybe a stale path."""
        parts = unquote(name.replace('\\', '/')).split('/')

        def fit(path: str) -> tuple:
            ends = os.path.commonprefix([path.split('/')[::-1], parts[::-1]])
            return len(ends), split_of(path) == split_of(near), \
                len(os.path.commonprefix([path, near]))
        return max(self.by_name.get(parts[-1], []), key=fit, default='')

    def size(self, path: str) -> tuple[int, int]:
        """Width and height of an image in pixels, after EXIF rotation."""
        with blame(self.root / path, 'fix or delete it'), \
                Image.open(self.root / path) as image:
            return image.size[::-1] if image.getexif().get(0x0112, 1) >= 5 else image.size

    def lines(self, path: str) -> list[str]:
        """The stripped lines of a text file; no lines if the path is ''."""
        text = (self.root / path).read_text('utf-8', 'replace') if path else ''
        return [line.strip() for line in text.splitlines()]

    def listed(self) -> tuple[str, list[str], int | None]:
        """The file that lists classes ('' if none does), their names, and their first id if any."""
        path = next((path for name in CLASSES for path in self.files
                     if Path(path).name == name), '')
        names = [line for line in self.lines(path)
                 if line and not line.startswith(('#', 'Pixel'))]
        rows = [row for line in names if (row := re.match(r'(\d+)\s*[\s,:]\s*([^\t]+)', line))]
        ids = [int(row[1]) for row in rows] if len(rows) == len(names) else []
        if ids:
            names = [row[2].strip() for row in rows]
        if len({*names}) < len(names) or ids and ids != [*range(ids[0] > 0, ids[-1] + 1)]:
            raise Fault(f'{self.root / path}: expected one class per line, none twice; ids before '
                        'them start at 0 or 1 and have no gaps')
        return path, names, ids[0] if ids else None


def split_of(path: str) -> str | None:
    """The split named by the innermost folder, or by a word in a json file's name."""
    *folders, name = path.lower().split('/')
    words = re.split(r'[^a-z0-9]+', name) if name.endswith('.json') else []
    return next((found[1] for word in [*words, *folders[::-1]]
                 if (found := SPLIT.fullmatch(word))), None)


def read_folder(root: str | os.PathLike, toolbox: str, *, ignore_index: int | None = None,
                reduce_zero_label: bool = False) -> Data:
    """Reads a folder for 'mmdet', 'mmseg' or 'mmpretrain'.

    In label maps, 0 is a class if ``ignore_index`` is given, and unlabelled under
    ``reduce_zero_label``.
    """
    folder = Folder(root)
    lists = f'ImageSets/{"Segmentation" if toolbox == "mmseg" else "Main"}'  # PASCAL VOC's
    splits = {stem: split for split in ('test', 'val', 'train') for path in folder.files
              if path.endswith(f'{lists}/{split}.txt')
              for line in folder.lines(path) for stem in line.split()[:1]}
    if splits and toolbox == 'mmseg':
        folder.images = [path for path in folder.images if Path(path).stem in splits]
    labelled = any(yolo_label(folder, image) for image in folder.images)
    found: dict[str, Any] = {
        'COCO': find_coco(folder), 'YOLO': folder.images if labelled else [],
        'PASCAL VOC': [path for path in folder.having('.xml', holding=[b'<annotation'])
                       if not splits or Path(path).stem in splits],
        'label maps': find_maps(folder)}
    found = {layout: files for layout, files in found.items() if files}
    if not found and all(map(class_of, folder.images)):
        found = {'class folders': folder.images}
    layouts = [layout for layout in TASKS[toolbox] if layout in found]
    if not layouts:
        raise Fault(f'{root}: holds {" and ".join(found) or "no known layout"}; this config needs '
                    f'{" or ".join(TASKS[toolbox])}, see docs/your_own_data.md')
    if len(layouts) > 1:
        raise Fault(f'{root}: two layouts at once, ' + ' and '.join(
            f'{one} ({found[one][0]})' for one in layouts) + '; move all but one elsewhere')
    layout, = layouts
    reduce, samples = False, found[layout]
    if layout == 'label maps':
        classes, reduce = read_maps(folder, samples, ignore_index, reduce_zero_label)
    elif layout == 'class folders':
        classes, samples = read_classes(folder)
    else:
        classes, samples = read_boxes(folder, layout, samples)
    for sample in samples if layout in ('PASCAL VOC', 'label maps') else ():
        sample.split = splits.get(Path(sample.path).stem, sample.split)
    train, val, how = split_samples(folder, samples)
    notes = [f'{folder.root}: {layout}, {len(classes)} classes: {some(classes, 8, str)}',
             f'{len(train)} images for training, {len(val)} for validation ({how})', *folder.notes]
    if layout in TASKS['mmdet']:
        for part in (train, val):
            if not any(sample.objects for sample in part):
                raise Fault(f'{root}: {part[0].path} and the {len(part) - 1} others of its split '
                            'have no objects; annotate some')
        used = {one['category_id'] for sample in train for one in sample.objects}
        if idle := [name for index, name in enumerate(classes) if index not in used]:
            notes.append(f'classes without an object in the training images: {some(idle)}')
    return Data(folder.root, layout, classes, train, val, notes, reduce)


def split_samples(folder: Folder, samples: Sequence[Sample]) \
        -> tuple[list[Sample], list[Sample], str]:
    """Training samples, validation samples, and a text on where the validation samples come from.

    Without a validation set, hashes of the paths pick a share of each class. The split is thus
    stable when images are added.
    """
    parts: dict[str | None, list[Sample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample.path):
        parts[sample.split].append(sample)
    train, val = parts['train'] + parts[None], parts['val'] or parts['test']
    how = f"the folder's {'validation' if parts['val'] else 'test'} set"
    if not train:
        raise Fault(f'{folder.root}: only {how}, no training images; their folder or file has to '
                    'be called "train"')
    if val:
        return train, val, how
    groups: dict[int, dict[int, str]] = defaultdict(dict)  # label -> hash -> path
    for sample in train:
        number = int(hashlib.sha256(sample.path.encode()).hexdigest()[:12], 16)
        groups[sample.label][number] = sample.path
    held: set[str] = set()
    for group in groups.values():
        if len(group) < 2:
            raise Fault(f'{folder.root / min(group.values())}: the only image of its kind, but '
                        'training and validation need one each; add images')
        chosen = [path for number, path in group.items() if number % HELD_OUT == 0]
        held.update(chosen if 0 < len(chosen) < len(group) else [group[min(group)]])
    return ([sample for sample in train if sample.path not in held],
            [sample for sample in train if sample.path in held],
            f'one in {HELD_OUT}, picked by a hash of the path')


def find_coco(folder: Folder) -> list[str]:
    """COCO files; only those called instances_*, if there are any."""
    found = folder.having('.json', holding=[b'"images"', b'"annotations"', b'"categories"'])
    proper = [path for path in found if re.search(r'instances_[a-zA-Z]+(20\d\d)?\.json$', path)]
    if left := [path for path in found if proper and path not in proper]:
        folder.notes.append(f'left out: {some(left)}')
    return proper or found


def read_boxes(folder: Folder, layout: str, files: Sequence[str]) -> tuple[list[str], list[Sample]]:
    """Classes and samples of COCO, PASCAL VOC and YOLO; classes.txt picks and orders classes."""
    read = {'COCO': read_coco, 'PASCAL VOC': read_voc, 'YOLO': read_yolo}[layout]
    listing, names, _ = folder.listed()
    classes = dict.fromkeys((yolo_names(folder) or names) if layout == 'YOLO' else [])
    samples: dict[str, Sample] = {}
    for file in sorted(files, key=lambda file: split_of(file) in ('val', 'test')):
        with blame(folder.root / file, 'add what is missing, fix it, or export it again'):
            images = read(folder, file, classes)
            paths = [folder.find_image(name, file) for name, *_ in images]
            if lacking := [image[0] for image, path in zip(images, paths) if not path]:
                raise ValueError(f'not in the folder: {some(lacking, 1)}, of {len(images)} images')
            for path, (_, size, objects) in zip(paths, images):
                if path in samples:
                    raise ValueError(f'{path} is listed more than once in the annotation files')
                size = size if all(size) else folder.size(path)
                for one in objects if layout == 'PASCAL VOC' else ():
                    x, y, width, height = one['bbox']
                    if not (0 < width <= size[0] + 1 - x and 0 < height <= size[1] + 1 - y):
                        raise ValueError(f'a box of {one["category_id"]} is empty or outside the '
                                         f'image of {size} pixels')
                samples[path] = Sample(path, split_of(file if layout == 'COCO' else path),
                                       size=size, objects=objects)
    kept = names or (sorted(classes) if layout == 'PASCAL VOC' else [*classes])
    if unknown := [name for name in kept if name not in classes]:
        raise Fault(f'{folder.root / listing}: no annotation names {some(unknown)}; the classes '
                    f'are {some([*classes], 8)}')
    if left := [name for name in classes if name not in kept]:
        folder.notes.append(f'left out, because {listing} does not list them: {some(left)}')
    for sample in samples.values():
        sample.objects = [dict(one, category_id=kept.index(one['category_id']))
                          for one in sample.objects if one['category_id'] in kept]
    return kept, [*samples.values()]


def annotation(name: str, box: Sequence[float], area: float | None = None, crowd: Any = 0,
               segmentation: Any = None) -> dict:
    """A COCO annotation with a class name as category_id; ``box`` is x, y, width, height."""
    left, top, width, height = map(float, box)
    return dict(category_id=name, bbox=[left, top, width, height], area=area or width * height,
                iscrowd=int(crowd or 0), segmentation=segmentation)


def read_coco(folder: Folder, file: str, classes: dict[str, None]) -> list[tuple]:
    """Name, size (Label Studio may omit it) and objects of each image; adds to ``classes``."""
    content = json.loads((folder.root / file).read_text('utf-8'))
    used = {entry.get('category_id') for entry in content['annotations']}
    # Roboflow lists the group of all classes as a class of its own
    groups = {entry.get('supercategory') for entry in content['categories']}
    names = {entry['id']: entry['name'] for entry in content['categories']
             if entry['id'] or entry['id'] in used or entry['name'] not in groups}
    new = [name for name in names.values() if name not in classes]
    if classes and new and split_of(file) in ('val', 'test'):
        raise ValueError(f'the training file has no category {some(new)}')
    classes.update(dict.fromkeys(names.values()))
    objects: dict[Any, list] = {entry['id']: [] for entry in content['images']}
    for entry in content['annotations']:
        kind, image, box = (entry.get(key) for key in ('category_id', 'image_id', 'bbox'))
        with blame(f'{folder.root / file}: object {entry.get("id")} category_id={kind} '
                   f'image_id={image} bbox={box}', 'fix it, or export the file again'):
            objects[image].append(annotation(
                names[kind], box, entry.get('area'), entry.get('iscrowd'),
                entry.get('segmentation')))
    return [(entry['file_name'], (entry.get('width'), entry.get('height')), objects[entry['id']])
            for entry in content['images']]


def read_voc(folder: Folder, file: str, classes: dict[str, None]) -> list[tuple]:
    """Like `read_coco`, for PASCAL VOC: coordinates as written, 'difficult' objects as crowd."""
    tree: Any = ElementTree.parse(folder.root / file).getroot()
    objects = []
    for node in tree.iter('object'):
        left, top, right, bottom = (float(node.findtext(f'bndbox/{side}'))
                                    for side in ('xmin', 'ymin', 'xmax', 'ymax'))
        name = node.findtext('name').strip()
        classes[name] = None
        objects.append(annotation(name, (left, top, right - left, bottom - top),
                                  crowd=node.findtext('difficult') == '1'))
    stem, called = Path(file).stem, tree.findtext('filename') or ''
    names = stem + Path(called).suffix, called, stem  # the file's name may be an old one
    return [(next((one for one in names if folder.find_image(one, file)), called), (0, 0), objects)]


def yolo_names(folder: Folder) -> list[str]:
    """The class names in data.yaml; none without such a file."""
    import yaml  # type: ignore[import-untyped]  # timm requires it too
    names: Any = None
    for path in folder.having('.yaml', '.yml'):
        with blame(folder.root / path, 'fix or delete it'):
            names = names or yaml.safe_load((folder.root / path).read_text('utf-8')).get('names')
    if isinstance(names, dict):
        names = [names.get(index, f'class_{index}') for index in range(max(names) + 1)]
    return [f'class_{index}' if name in names[:index] else str(name)
            for index, name in enumerate(names or [])]


def yolo_label(folder: Folder, image: str) -> str:
    """labels/train/a.txt for images/train/a.jpg, or a.txt beside it; '' if neither exists."""
    beside = f'{os.path.splitext(image)[0]}.txt'
    other = re.sub(r'(^|.*/)images/', r'\1labels/', beside)
    return next((path for path in (other, beside) if (folder.root / path).is_file()), '')


def read_yolo(folder: Folder, image: str, classes: dict[str, None]) -> list[tuple]:
    """Like `read_coco`, for an image in YOLO's layout; ``classes`` lists the names by number."""
    label, size, names, objects = yolo_label(folder, image), folder.size(image), [*classes], []
    for number, row in enumerate(folder.lines(label), 1):
        with blame(f'{folder.root / label}:{number}', 'rows are class x y width height, or '
                   'class x1 y1 x2 y2 .., divided by the size of the image'):
            objects += [yolo_object(row, names, size)] if row else []
    return [(quote(image), size, objects)]


def yolo_object(row: str, names: Sequence[str], size: tuple[int, int]) -> dict:
    """Converts a row of a label file to a COCO annotation."""
    label, *values = map(float, row.split())
    if label not in range(len(names)):
        raise ValueError(f'class {label:g}, but {len(names)} names: list its name in classes.txt '
                         'or data.yaml')
    if len(values) < 4 or not all(-.01 <= value <= 1.01 for value in values):
        raise ValueError('expected four or more coordinates in 0..1')
    name, points = names[int(label)], np.clip(values, 0, 1).reshape(-1, 2) * size
    if len(points) == 2:
        centre, sides = points
        return annotation(name, [*(centre - sides / 2).tolist(), *sides.tolist()])
    x, y = points.T
    return dict(annotation(name, [*points.min(0).tolist(), *np.ptp(points, 0).tolist()]),
                area=abs(float(x @ np.roll(y, 1) - y @ np.roll(x, 1))) / 2,
                segmentation=[points.ravel().tolist()])


def find_maps(folder: Folder) -> list[Sample]:
    """Images with a label map NAME.png or NAME_mask.png, beside them or in one of `MAP_DIRS`."""
    files, found = {*folder.having('.png')}, []
    kinds = sorted({name for path in folder.folders
                    if (name := Path(path).name).lower() in MAP_DIRS})
    for image in folder.images:
        stem, suffix = os.path.splitext(image)
        place, name = os.path.split(stem)
        places = [(place, place, name)]
        if match := re.fullmatch(rf'((?:.*/)?)({"|".join(IMAGE_DIRS)})/(.+)', stem, re.I):
            above, own, name = match.groups()
            places += [(above + own, above + kind, name) for kind in kinds]
        found += [Sample(image, split_of(image), label_map=(images, maps, suffix, end, name))
                  for images, maps, name in places for end in ('.png', '_mask.png')
                  if (path := f'{maps}/{name}{end}'.lstrip('/')) in files and path != image][:1]
    return found


def read_maps(folder: Folder, samples: list[Sample], ignored: int | None, reduce: bool) \
        -> tuple[list[str], bool]:
    """Class names for the ids in a sample of the label maps, and whether 0 is unlabelled."""
    paired = {sample.path for sample in samples}
    places = tuple({f'{sample.label_map[0]}/' for sample in samples} - {'/'})
    if lacking := [path for path in folder.images
                   if path not in paired and path.startswith(places)]:
        raise Fault(f'{folder.root}: no label map for {some(lacking, 1)}; add '
                    f'{samples[0].label_map[1]}/NAME.png')
    first: dict[int, Path] = {}  # id -> a map that has it
    for sample in samples[::-(-len(samples) // SAMPLED_MAPS)]:
        _, maps, _, end, name = sample.label_map
        path = folder.root / maps / (name + end)
        with blame(path, 'fix it, or export indexed or grayscale masks'), \
                Image.open(path) as picture:
            ids = np.asarray(picture)
            if ids.ndim != 2:
                raise ValueError('a colour picture, expected one channel of class ids')
        for value in np.unique(ids).tolist():
            first.setdefault(value, path)
    classes, reduce = class_ids(folder, first, ignored, reduce)
    folder.notes.append('0 in the label maps is ' + (
        'unlabelled, classes begin at 1' if reduce else 'a class'))
    return classes, reduce


def class_ids(folder: Folder, first: dict[int, Path], ignored: int | None, reduce: bool) \
        -> tuple[list[str], bool]:
    """Names of the classes, and whether 0 is unlabelled; see `read_folder` and `read_maps`."""
    source, names, begin = folder.listed()
    ids, count = sorted({*first} - {255, ignored}), len(names)
    top = ids[-1] if ids else 0
    if not top:
        raise Fault(f'{next(iter(first.values()))}: this and all other label maps hold only '
                    f'{sorted(first)}; write class ids, such as 1 for the object in a mask')
    if begin is not None:
        reduce = reduce or begin == 1
        names = names[1:] if reduce and begin == 0 else names
    elif ignored is None and not reduce:
        reduce = top == count or not (count or 0 in ids)
        if not reduce and (not count or top < count - 1 or top < count and 0 not in ids):
            raise Fault(
                f'{folder.root}: the label maps hold ids {ids[0]} to {top}, and two readings fit: '
                f'0 is unlabelled and 1 to {count or top} are classes (--reduce-zero-label), or 0 '
                f'to {(count or top + 1) - 1} are classes (--ignore-index 255)')
    names = names or [f'class_{index}' for index in range(reduce, top + 1)]
    if beyond := [value for value in ids if value >= len(names) + reduce]:
        raise Fault(f'{first[beyond[0]]}: has id {beyond[0]}, but {source} names ids '
                    f'{int(reduce)} to {len(names) + reduce - 1}; add its name, or pass '
                    f'--ignore-index {beyond[0]} if it is not a class')
    return names, reduce


def class_of(path: str) -> str:
    """An image's class: the first folder of its path, or the second if the first is a split."""
    *folders, _ = path.split('/')
    return next(iter(folders[bool(folders and split_of(f'{folders[0]}/')):]), '')


def read_classes(folder: Folder) -> tuple[list[str], list[Sample]]:
    """Classes and samples of class folders, in the order of classes.txt or else of the names."""
    source, classes, _ = folder.listed()
    classes = classes or sorted({class_of(f'{path}/') for path in folder.folders} - {''})
    samples = [Sample(path, split_of(path.split('/')[0] + '/'), classes.index(class_of(path)))
               for path in folder.images if class_of(path) in classes]
    used = {sample.label for sample in samples if sample.split in (None, 'train')}
    if idle := [name for index, name in enumerate(classes) if index not in used]:
        raise Fault(f'{folder.root / idle[0]}: a class without training images; add some, or '
                    f'delete the folder {f"and its line in {source}" if source else ""}')
    if len(classes) < 2:
        raise Fault(f'{folder.root / classes[0]}: the only class folder; a classifier needs two '
                    'classes')
    return classes, samples


def write_index(data: Data, folder: Path) -> dict[str, list[dict]]:
    """Writes the files that the toolboxes' data sets read; returns each split's data set configs.

    Label maps need one data set for each combination of folders and suffixes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, list[dict]] = dict(train=[], val=[])
    for split, samples in (('train', data.train), ('val', data.val)):
        for number, place in enumerate(dict.fromkeys(one.label_map[:-1] for one in samples)):
            path = f'{folder.resolve()}/{split}{number or ""}.txt'
            if data.layout == 'label maps':
                images, maps, suffix, end = place
                text = ''.join(f'{one.label_map[-1]}\n' for one in samples
                               if one.label_map[:-1] == place)
                own = dict(type='BaseSegDataset', ann_file=path, img_suffix=suffix,
                           seg_map_suffix=end, reduce_zero_label=data.reduce_zero_label,
                           data_prefix=dict(img_path=images, seg_map_path=maps))
            elif data.layout == 'class folders':
                text = ''.join(f'{one.path} {one.label}\n' for one in samples)
                own = dict(type='CustomDataset', ann_file=path, data_prefix='')
            else:
                path = str(Path(path).with_suffix('.json'))
                text = json.dumps(coco_content(data, samples))
                own = dict(type='CocoDataset', ann_file=path, data_prefix=dict(img=''))
            part = Path(f'{path}.{os.getpid()}')  # every process of a run writes this file
            part.write_text(text, 'utf-8')
            part.replace(path)
            made[split].append(own)
    return made


def coco_content(data: Data, samples: Sequence[Sample]) -> dict:
    """The content of a COCO file; category k + 1 is class k."""
    objects = [dict(one, image_id=number, category_id=one['category_id'] + 1)
               for number, sample in enumerate(samples, 1) for one in sample.objects]
    return dict(
        images=[dict(id=number, file_name=sample.path, width=sample.size[0], height=sample.size[1])
                for number, sample in enumerate(samples, 1)],
        categories=[dict(id=number, name=name) for number, name in enumerate(data.classes, 1)],
        annotations=[dict(one, id=number) for number, one in enumerate(objects, 1)])
