"""Reads a folder of somebody's own data, and recognises its layout.

    layout          looks like                                             toolbox
    COCO            *.json with images, annotations and categories         mmdet
    PASCAL VOC      *.xml of <annotation>, one an image                    mmdet
    YOLO            *.txt of rows 'class x y w h' or 'class x1 y1 x2 ..'   mmdet
    label maps      images/.. and annotations/.. with the same names       mmseg
    class folders   CLASS/*.jpg, or train/CLASS/*.jpg                      mmpretrain

Exports of Label Studio, CVAT and Roboflow are COCO files whose images lie elsewhere than COCO's:
an image is found by the end of its path, anywhere in the folder. All errors are ValueErrors of one
line that name the file and what to do.
"""
from __future__ import annotations

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from lape_mm.wording import some

IMAGES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff')
SPLIT = re.compile(r'(train|val|test)(?:ing|id|idation)?(?:20\d\d)?')
IMAGE_DIRS = ('images', 'image', 'imgs', 'img', 'img_dir', 'jpegimages', 'leftimg8bit')
MAP_DIRS = ('annotations', 'annotation', 'masks', 'mask', 'labels', 'label', 'ann_dir',
            'segmentationclass', 'gt')
CLASSES = ('classes.txt', 'obj.names', '_classes.csv')
HELD_OUT = 5  # one image in so many is validated on where the folder has no validation set
SAMPLED_MAPS = 1000
TASKS = {'mmdet': ('COCO', 'PASCAL VOC', 'YOLO'), 'mmseg': ('label maps',),
         'mmpretrain': ('class folders',)}


@dataclass
class Sample:
    """An image with its annotation.

    Attributes:
        path: below the folder, with slashes.
        split: 'train', 'val', 'test' or None.
        label: index of its class (class folders).
        label_map: (folder of images, folder of maps, suffix, suffix of maps, name).
        size: (width, height) in pixels (boxes), as images are read: turned as EXIF says.
        objects: COCO annotations whose ``category_id`` is an index of ``Data.classes``.
    """

    path: str
    split: str | None = None
    label: int = -1
    label_map: tuple[str, ...] = ()
    size: tuple[int, int] = (0, 0)
    objects: list[dict] = field(default_factory=list)


@dataclass
class Data:
    """A folder's data.

    Attributes:
        root, layout: the folder, and its layout as in `TASKS`.
        classes: their names; a label is an index.
        train, val: the samples.
        notes: what was found, chosen and left out, one line each.
        reduce_zero_label: whether 0 in a label map is unlabelled, and class k is k + 1.
    """

    root: Path
    layout: str
    classes: list[str]
    train: list[Sample]
    val: list[Sample]
    notes: list[str]
    reduce_zero_label: bool = False


class Folder:
    """The files of a folder, without hidden ones.

    Attributes:
        root: the folder.
        files, images: paths below it, with slashes, sorted.
        notes: see `Data`.
    """

    def __init__(self, root: str | os.PathLike):
        self.root = Path(root).expanduser().resolve()
        if not self.root.is_dir():
            raise ValueError(f'{root}: there is no such folder')
        self.notes: list[str] = []
        self.folders, found = [], []
        for here, folders, names in os.walk(self.root, followlinks=True):
            folders[:] = sorted(name for name in folders if name[0] not in '._')
            below = Path(here).relative_to(self.root)
            self.folders += [(below / name).as_posix() for name in folders]
            found += [(below / name).as_posix() for name in names if name[0] != '.']
        self.files = sorted(found)
        self.images = [path for path in self.files if path.lower().endswith(IMAGES)]
        if not self.images:
            raise ValueError(f'{root}: holds no image ({", ".join(IMAGES)})')
        self.by_name = defaultdict(list)
        for path in self.images:
            self.by_name[path.rpartition('/')[2]].append(path)

    def named(self, suffix: str) -> list[str]:
        """Files with a suffix."""
        return [path for path in self.files if path.lower().endswith(suffix)]

    def find_image(self, name: str, near: str) -> str | None:
        """The image that a file of annotations means by ``name``, which may be on another machine.

        Args:
            name: as in the file, also with backslashes or as part of an address.
            near: the file; an image of its split or folder goes before others.
        """
        name = unquote(name.replace('\\', '/'))
        parts = name.split('/')
        found = self.by_name.get(parts[-1], [])
        if len(found) > 1:  # the longest common end, then the same split, then the same folder
            def fit(path: str) -> tuple:
                ends = next((count for count, (one, other) in enumerate(zip(
                    path.split('/')[::-1], parts[::-1])) if one != other), len(parts))
                return ends, split_of(path) == split_of(near), \
                    len(os.path.commonprefix([path, near]))
            found = sorted(found, key=fit)
        return found[-1] if found else None

    def size(self, path: str) -> tuple[int, int]:
        """Width and height of an image in pixels, turned as EXIF says."""
        try:
            with Image.open(self.root / path) as image:
                turned = image.getexif().get(0x0112, 1) >= 5
                return image.size[::-1] if turned else image.size
        except OSError as error:
            raise ValueError(f'{self.root / path}: cannot be read as an image ({error}); mend or '
                             'delete it') from error

    def listed_names(self) -> tuple[str, list[str] | dict[int, str]] | None:
        """The file that lists the classes, and their names; with ids if all lines have one."""
        found = [path for name in CLASSES for path in self.files
                 if path.rpartition('/')[2] == name][:1]
        if not found:
            return None
        lines = [line.strip() for line in (self.root / found[0]).read_text(
            'utf-8', 'replace').splitlines() if line.strip() and line[0] != '#']
        rows = [re.match(r'(\d+)\s*[\s,:]\s*([^\t]+)', line) for line in lines]
        if lines and all(rows[lines[0].startswith('Pixel'):]):
            return found[0], {int(row[1]): row[2].strip() for row in rows if row}
        if not lines or len(set(lines)) < len(lines):
            raise ValueError(f'{self.root / found[0]}: expected one class a line, none twice')
        return found[0], lines


def split_of(path: str) -> str | None:
    """The split that a folder, or a word in a file's name, says: the innermost one."""
    *folders, name = path.lower().split('/')
    words = re.split(r'[^a-z0-9]+', name) if name.endswith('.json') else []
    return next((found[1] for word in [*words, *folders[::-1]]
                 if (found := SPLIT.fullmatch(word))), None)


def read_folder(root: str | os.PathLike, toolbox: str, *, ignore_index: int | None = None,
                reduce_zero_label: bool = False) -> Data:
    """Reads a folder for a toolbox.

    Args:
        root: the folder.
        toolbox: 'mmdet', 'mmseg' or 'mmpretrain', which says what layouts will do.
        ignore_index: the id in label maps that is no class; 0 is then a class.
        reduce_zero_label: label maps' 0 is unlabelled, and classes begin at 1.

    Raises:
        ValueError: the folder is empty, has no layout or several, or a file of it is wrong.
    """
    folder = Folder(root)
    found = {layout: files for layout, recognise in RECOGNISED.items()
             if (files := recognise(folder))}
    if not found and (files := class_folders(folder)):
        found = {'class folders': files}
    fitting = [layout for layout in TASKS[toolbox] if layout in found]
    wanted = ' or '.join(TASKS[toolbox])
    if not fitting:
        text = f'its layout is {" and ".join(found)}' if found else 'its layout is none that we know'
        jsons = folder.named('.json')
        also = f' ({jsons[0]} is no COCO file)' if jsons and 'COCO' not in found else ''
        raise ValueError(f'{root}: {text}{also}; this config needs {wanted}, see '
                         'docs/your_own_data.md')
    if len(fitting) > 1:
        raise ValueError(f'{root}: two layouts at once, ' + ' and '.join(
            f'{layout} ({some(found[layout], 1, str)})' for layout in fitting)
            + '; move all but one elsewhere')
    layout = fitting[0]
    if layout == 'label maps':
        data = read_maps(folder, found[layout], ignore_index, reduce_zero_label)
    elif layout == 'class folders':
        data = read_classes(folder, found[layout])
    else:
        classes, samples = READERS[layout](folder, found[layout])
        classes = keep_listed(folder, classes, samples) if layout != 'YOLO' else classes
        data = assemble(folder, layout, classes, samples)
        check_objects(data)
    return data


def assemble(folder: Folder, layout: str, classes: list[str], samples: Sequence[Sample],
             **more) -> Data:
    """Finds or splits off the validation set."""
    parts: dict[str | None, list[Sample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample.path):
        parts[sample.split].append(sample)
    train, val = parts['train'] + parts[None], parts['val'] or parts['test']
    if not train:
        raise ValueError(f'{folder.root}: has no training images, only a validation set; name the '
                         'folder or file of the others "train"')
    how = f'the {"validation" if parts["val"] else "test"} set of the folder'
    if not val:
        how = f'one in {HELD_OUT}, picked by a hash of the name'
        train, val = hold_out(train)
    if parts['val'] and parts['test']:
        folder.notes.append(f'{len(parts["test"])} test images are left out')
    folder.notes.insert(0, f'{folder.root}: {layout}, {len(classes)} classes: '
                        f'{some(classes, 8, str)}')
    folder.notes.insert(1, f'{len(train)} images for training, {len(val)} for validation ({how})')
    return Data(folder.root, layout, classes, train, val, folder.notes, **more)


def hold_out(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Splits off a validation set: of each class its share, by hashes of the paths.

    More images later leave those that are there on their side.

    Raises:
        ValueError: a class has a single image.
    """
    groups: dict[int, list[tuple[int, Sample]]] = defaultdict(list)
    for sample in samples:
        number = int(hashlib.sha256(sample.path.encode()).hexdigest()[:12], 16)
        groups[sample.label].append((number, sample))
    chosen: set[str] = set()
    for group in groups.values():
        group.sort(key=lambda entry: entry[0])
        if len(group) < 2:
            raise ValueError(f'{group[0][1].path}: the only image, and one for training and one '
                             'for validation are needed; add images')
        held = [sample.path for number, sample in group if number % HELD_OUT == 0]
        chosen.update(held if 0 < len(held) < len(group) else [group[0][1].path])
    return [sample for sample in samples if sample.path not in chosen], \
        [sample for sample in samples if sample.path in chosen]


def find_coco(folder: Folder) -> list[str]:
    """COCO's files: 'instances_*' where there are some, else all with categories."""
    found = []
    for path in folder.named('.json'):
        text = (folder.root / path).read_bytes()
        if all(f'"{key}"'.encode() in text for key in ('images', 'annotations', 'categories')):
            found.append(path)
    instances = [path for path in found if re.fullmatch(
        r'instances_[a-z]+(20\d\d)?\.json', path.rpartition('/')[2].lower())]
    if instances and len(instances) < len(found):
        folder.notes.append(f'left out: {some([path for path in found if path not in instances])}')
    return instances or found


def read_coco(folder: Folder, files: Sequence[str]) -> tuple[list[str], list[Sample]]:
    """Reads COCO files, one a split."""
    splits: dict[str | None, str] = {}
    classes: list[str] = []
    samples: dict[str, Sample] = {}
    for file in sorted(files, key=lambda file: split_of(file) not in (None, 'train')):
        where, split = folder.root / file, split_of(file)
        if (other := splits.setdefault(split, file)) != file:
            raise ValueError(f'{where}: {folder.root / other} is also a COCO file of '
                             f'{f"the {split} images" if split else "no named split"}; keep one, '
                             'or put train and val into their names')
        try:
            content = json.loads(where.read_text('utf-8'))
            names = {entry['id']: entry['name'] for entry in content['categories']}
            images = {entry['id']: entry for entry in content['images']}
            objects = content['annotations']
            used = {entry['category_id'] for entry in objects}
            lost = [entry for entry in objects if entry['category_id'] not in names
                    or entry['image_id'] not in images]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f'{where}: is no COCO file ({type(error).__name__}: {error}); export '
                             'it again') from error
        if lost:
            raise ValueError(f'{where}: {len(lost)} of {len(objects)} objects have a category_id '
                             f'or image_id that the file does not list, first object '
                             f'{lost[0].get("id")}; export it again')
        # Roboflow lists the group of all classes as a class of its own
        above = {entry.get('supercategory') for entry in content['categories']}
        names = {key: name for key, name in names.items()
                 if not (key == 0 and name in above and key not in used)}
        classes = classes or list(dict.fromkeys(names.values()))
        if new := [name for name in names.values() if name not in classes]:
            raise ValueError(f'{where}: has categories that {files[0]} does not have, {some(new)}; '
                             'export both with the same classes')
        found = {key: folder.find_image(str(entry.get('file_name')), file)
                 for key, entry in images.items()}
        if lacking := [entry for key, entry in images.items() if not found[key]]:
            raise ValueError(f'{where}: {len(lacking)} of {len(images)} images are not in '
                             f'{folder.root}, first {lacking[0].get("file_name")}; put them there')
        for key, entry in images.items():
            path = found[key]
            if path in samples:
                raise ValueError(f'{where}: {folder.root / path} is listed twice; keep one entry')
            size = entry.get('width') and entry.get('height') and (entry['width'], entry['height'])
            samples[path] = Sample(path, split, size=size or folder.size(path))
        for entry in objects:
            sample = samples[found[entry['image_id']]]
            sample.objects.append(whole_object(
                entry, classes.index(names[entry['category_id']]), where))
    return classes, list(samples.values())


def whole_object(entry: dict, label: int, where: Path) -> dict:
    """A COCO annotation with what mmdet looks up; `where` is for the error."""
    outline = entry.get('segmentation') or None
    box = entry.get('bbox')
    if not box and isinstance(outline, list):
        return from_polygon(label, [value for part in outline for value in part],
                            segmentation=outline)
    if not isinstance(box, list) or len(box) != 4:
        raise ValueError(f'{where}: object {entry.get("id")} has bbox={box!r}, expected '
                         '[x, y, width, height]; export it again')
    return dict(category_id=label, bbox=box, area=entry.get('area') or box[2] * box[3],
                iscrowd=int(entry.get('iscrowd') or 0), segmentation=outline)


def from_polygon(label: int, numbers: Sequence[float], **more) -> dict:
    """An annotation of points x1, y1, x2, y2, .. in pixels."""
    points = np.asarray(numbers, float).reshape(-1, 2)
    left, top = points.min(0).tolist()
    width, height = np.ptp(points, 0).tolist()
    x, y = points.T
    area = abs(float(x @ np.roll(y, 1) - y @ np.roll(x, 1))) / 2
    return dict(dict(category_id=label, bbox=[left, top, width, height], area=area, iscrowd=0,
                     segmentation=[points.ravel().tolist()]), **more)


def keep_listed(folder: Folder, classes: list[str], samples: Iterable[Sample]) -> list[str]:
    """The classes that classes.txt lists, in its order; others are left out.

    Raises:
        ValueError: the annotations have no such class.
    """
    listed = folder.listed_names()
    if not listed or isinstance(listed[1], dict):
        return classes
    kept = listed[1]
    if unknown := [name for name in kept if name not in classes]:
        raise ValueError(f'{folder.root / listed[0]}: no annotation names {some(unknown)}; the '
                         f'classes are {some(classes, 8)}')
    if left := [name for name in classes if name not in kept]:
        folder.notes.append(f'left out, because {listed[0]} does not list them: {some(left)}')
    numbers = {index: kept.index(name) for index, name in enumerate(classes) if name in kept}
    for sample in samples:
        sample.objects = [dict(one, category_id=numbers[one['category_id']])
                          for one in sample.objects if one['category_id'] in numbers]
    return kept


def check_objects(data: Data) -> None:
    """Raises ValueError where no image of a split has an object; notes classes without any."""
    for part, samples in (('training', data.train), ('validation', data.val)):
        if not any(sample.objects for sample in samples):
            raise ValueError(f'{data.root}: none of the {len(samples)} {part} images has an '
                             'object; annotate some')
    used = {one['category_id'] for sample in data.train for one in sample.objects}
    if idle := [name for index, name in enumerate(data.classes) if index not in used]:
        data.notes.append(f'without an object in the training images: {some(idle)}')


def find_voc(folder: Folder) -> list[str]:
    """Files of PASCAL VOC's annotations."""
    found = []
    for path in folder.named('.xml'):
        with open(folder.root / path, 'rb') as file:
            if b'<annotation' in file.read(300):
                found.append(path)
    return found


def read_voc(folder: Folder, files: Sequence[str]) -> tuple[list[str], list[Sample]]:
    """Reads PASCAL VOC files; boxes are taken as written, objects called difficult are ignored."""
    lists = split_lists(folder, 'Main')
    samples, names = [], []
    for file in files:
        where, stem = folder.root / file, Path(file).stem
        if lists and stem not in lists:
            continue
        try:
            tree = ElementTree.parse(where).getroot()
            boxes = [(str(node.findtext('name')).strip(), [
                float(node.findtext(f'bndbox/{side}')) for side in (
                    'xmin', 'ymin', 'xmax', 'ymax')], node.findtext('difficult') == '1')
                for node in tree.iter('object')]
        except (ElementTree.ParseError, TypeError, ValueError) as error:
            raise ValueError(f'{where}: is no annotation of PASCAL VOC ({error}); export it '
                             'again') from error
        image = next((path for suffix in IMAGES for name in (
            stem + suffix, stem + suffix.upper()) if (path := folder.find_image(name, file))),
            None) or folder.find_image(str(tree.findtext('filename')), file)
        if not image:
            raise ValueError(f'{where}: {tree.findtext("filename")} is not in {folder.root}; put it '
                             'there or delete the annotation')
        size = folder.size(image)
        if wrong := [box for _, box, _ in boxes if not (
                box[0] < box[2] <= size[0] + 1 and box[1] < box[3] <= size[1] + 1)]:
            raise ValueError(f'{where}: box {wrong[0]} does not lie in the image of {size[0]} x '
                             f'{size[1]} pixels; mend or delete it')
        names += [name for name, _, _ in boxes]
        samples.append((Sample(image, lists.get(stem) or split_of(image), size=size), boxes))
    classes = sorted(set(names))
    for sample, boxes in samples:
        sample.objects = [dict(
            category_id=classes.index(name), bbox=[x, y, right - x, bottom - y],
            area=(right - x) * (bottom - y), iscrowd=int(difficult), segmentation=None)
            for name, (x, y, right, bottom), difficult in boxes]
    return classes, [sample for sample, _ in samples]


def split_lists(folder: Folder, kind: str) -> dict[str, str]:
    """Names of images -> split, of ImageSets/KIND/{train,val,test}.txt."""
    return {line.split()[0]: split for split in ('test', 'val', 'train')
            for path in folder.files if path.endswith(f'ImageSets/{kind}/{split}.txt')
            for line in (folder.root / path).read_text().splitlines() if line.strip()}


def find_yolo(folder: Folder) -> list[str]:
    """Images that have a file of rows of numbers beside them, or in ``labels`` for ``images``."""
    texts = set(folder.named('.txt'))
    return [image for image in folder.images
            if (label := yolo_label(image)) in texts or label_beside(image) in texts]


def yolo_label(image: str) -> str:
    """labels/train/a.txt for images/train/a.jpg."""
    before, found, after = f'/{image}'.rpartition('/images/')
    return f'{before}/labels/{after}'[1:].rpartition('.')[0] + '.txt' if found else ''


def label_beside(image: str) -> str:
    return image.rpartition('.')[0] + '.txt'


def read_yolo(folder: Folder, files: Sequence[str]) -> tuple[list[str], list[Sample]]:
    """Reads YOLO's rows, boxes or polygons in shares of the image; images without are empty."""
    classes = yolo_classes(folder)
    texts, samples = set(folder.named('.txt')), []
    for path in folder.images:
        size, label = folder.size(path), yolo_label(path)
        label = label if label in texts else label_beside(path)
        sample = Sample(path, split_of(path), size=size)
        samples.append(sample)
        rows = (folder.root / label).read_text('utf-8', 'replace').splitlines() \
            if label in texts else []
        for number, row in enumerate(rows, 1):
            if row.strip():
                try:
                    sample.objects.append(yolo_object(row.split(), classes, size))
                except ValueError as error:
                    raise ValueError(f'{folder.root / label}:{number}: {error}') from error
    return classes, samples


def yolo_classes(folder: Folder) -> list[str]:
    """The names in data.yaml, else in classes.txt."""
    import yaml
    for path in [*folder.named('.yaml'), *folder.named('.yml')]:
        try:
            names = (yaml.safe_load((folder.root / path).read_text('utf-8')) or {}).get('names')
        except (yaml.YAMLError, AttributeError, UnicodeDecodeError):
            continue
        if isinstance(names, dict):
            names = [names.get(index, f'class_{index}') for index in range(max(names) + 1)]
        if names:
            return [str(name) for name in names]
    listed = folder.listed_names()
    if not listed:
        raise ValueError(f'{folder.root}: YOLO labels without names; write classes.txt there, one '
                         'class a line, or a data.yaml with names')
    return list(listed[1].values()) if isinstance(listed[1], dict) else listed[1]


def yolo_object(row: Sequence[str], classes: Sequence[str], size: tuple[int, int]) -> dict:
    """One row as an annotation in pixels."""
    try:
        label, *values = int(float(row[0])), *map(float, row[1:])
    except ValueError:
        raise ValueError(f'{" ".join(row)!r:.60}: expected numbers') from None
    if len(values) != 4 and (len(values) < 6 or len(values) % 2):
        raise ValueError(f'{len(row)} numbers, expected class x y width height, or a class and the '
                         'points of a polygon')
    if not 0 <= label < len(classes):
        raise ValueError(f'class {label}, but there are only {len(classes)} names, 0 to '
                         f'{len(classes) - 1}; mend the row, or add the name to classes.txt or '
                         'data.yaml')
    if not all(-.01 <= value <= 1.01 for value in values):
        raise ValueError('coordinates beyond 0..1: divide pixels by the width and height of the '
                         'image')
    scaled = np.clip(values, 0, 1).reshape(-1, 2) * size
    if len(values) > 4:
        return from_polygon(label, scaled.ravel())
    (x, y), (width, height) = scaled.tolist()
    return dict(category_id=label, bbox=[x - width / 2, y - height / 2, width, height],
                area=width * height, iscrowd=0, segmentation=None)


def find_maps(folder: Folder) -> list[tuple[str, ...]]:
    """(image, label map) with the same name: beside as NAME_mask.png, or in folders as MAP_DIRS."""
    files = set(folder.named('.png'))
    kinds = {name for path in folder.folders if (
        name := path.rpartition('/')[2]).lower() in MAP_DIRS}
    found = []
    for image in folder.images:
        stem, suffix = os.path.splitext(image)
        parts = stem.split('/')
        if f'{stem}_mask.png' in files:
            found.append((image, '/'.join(parts[:-1]), '/'.join(parts[:-1]), suffix, '_mask.png',
                          parts[-1]))
            continue
        for level, part in enumerate(parts[:-1]):
            if part.lower() not in IMAGE_DIRS:
                continue
            outer, inner = parts[:level], '/'.join(parts[level + 1:])
            found += [(image, '/'.join([*outer, part]), '/'.join([*outer, kind]), suffix, end, inner)
                      for kind in sorted(kinds) for end in ('.png', '_mask.png')
                      if '/'.join([*outer, kind, inner]) + end in files][:1]
    return found


def read_maps(folder: Folder, pairs: Sequence[tuple[str, ...]], ignored: int | None,
              reduce: bool) -> Data:
    """Reads label maps' names, a sample of their ids, and which ids are classes."""
    lists = split_lists(folder, 'Segmentation')
    samples = [Sample(image, lists.get(Path(image).stem) or split_of(image),
                      label_map=(*place,)) for image, *place in pairs
               if not lists or Path(image).stem in lists]
    folders = {sample.label_map[0] for sample in samples}
    paired = {image for image, *_ in pairs}
    if lacking := [path for path in folder.images if not lists and path not in paired and any(
            path.startswith(f'{one}/') for one in folders if one)]:
        raise ValueError(f'{folder.root / lacking[0]}: has no label map in {samples[0].label_map[1]} '
                         f'({len(lacking)} such images); add the maps, or move the images elsewhere')
    first: dict[int, str] = {}
    for sample in samples[::-(-len(samples) // SAMPLED_MAPS)]:
        _, maps, _, suffix, name = sample.label_map
        for value in ids_of(path := folder.root / maps / (name + suffix)):
            first.setdefault(value, str(path))
    listed = folder.listed_names()
    classes, reduce = class_ids(folder, first, listed, ignored, reduce)
    folder.notes.append('0 in the label maps is unlabelled, and classes begin at 1' if reduce else
                        '0 in the label maps is a class')
    return assemble(folder, 'label maps', classes, samples, reduce_zero_label=reduce)


def ids_of(path: Path) -> list[int]:
    """The ids in a label map."""
    try:
        with Image.open(path) as picture:
            ids = np.asarray(picture)
    except OSError as error:
        raise ValueError(f'{path}: cannot be read as an image ({error})') from error
    if ids.ndim != 2:
        raise ValueError(f'{path}: a colour picture, expected one channel of class ids; export '
                         'masks of ids ("indexed", "grayscale")')
    return np.unique(ids).tolist()


def class_ids(folder: Folder, first: dict[int, str], listed, ignored: int | None, reduce: bool) \
        -> tuple[list[str], bool]:
    """Names of the classes, and whether 0 is unlabelled.

    Args:
        folder: for messages.
        first: id -> a label map that has it.
        listed: what `Folder.listed_names` returns.
        ignored, reduce: what the user says.

    Raises:
        ValueError: the ids allow two readings, or none.
    """
    ids = sorted(set(first) - {255, ignored})
    if not ids or ids == [0] and reduce:
        raise ValueError(f'{next(iter(first.values()))}: this and all other label maps hold only '
                         f'{sorted(first)}, of which none is a class; write class ids (a binary '
                         'mask: 1 for the object, not 255)')
    top, known = ids[-1], ignored is not None or reduce
    source, names = listed or ('classes.txt', None)
    if isinstance(names, dict):
        begin = 1 if 0 not in names else 0
        if sorted(names) != [*range(begin, begin + len(names))]:
            raise ValueError(f'{folder.root / source}: expected ids without gaps, from 0 or 1')
        reduce = reduce or not (begin or known) or begin == 1
        reduce = reduce and not (begin == 0 and not known)
        names = [names[key] for key in sorted(names) if key or not reduce]
    elif not known:
        count = len(names) if names else None
        if 0 not in ids and count in (None, top) or count is not None and top == count:
            reduce = True
        elif not (count is not None and (top > count or top == count - 1)):
            raise ValueError(
                f'{folder.root}: label maps hold ids {ids[0]} to {top}, which can be read in two '
                f'ways: 0 is unlabelled and 1 to {count or top} are classes (--reduce-zero-label), '
                f'or 0 to {count - 1 if count else top} are classes (--ignore-index 255)')
    names = names or [f'class_{index}' for index in range(reduce, top + 1)]
    if beyond := [value for value in ids if value >= len(names) + reduce]:
        raise ValueError(f'{first[beyond[0]]}: holds id {beyond[0]}, but {source} names '
                         f'{len(names)} classes, {int(reduce)} to {len(names) + reduce - 1}; add '
                         f'the name, or pass --ignore-index {beyond[0]} if it is no class')
    return names, reduce


def class_folders(folder: Folder) -> list[str]:
    """Images in class folders, if all images are; each class has at least a folder."""
    return folder.images if all(class_of(path) for path in folder.images) else []


def class_of(path: str) -> str:
    """The class that an image's path names: its first folder below that of a split."""
    folders = path.split('/')[:-1]
    if folders and SPLIT.fullmatch(folders[0].lower()):
        folders = folders[1:]
    return folders[0] if folders else ''


def read_classes(folder: Folder, files: Sequence[str]) -> Data:
    """Reads class folders, sorted by name, or those that classes.txt lists in its order."""
    listed = folder.listed_names()
    names = {class_of(f'{path}/x') for path in folder.folders} - {''}
    classes = sorted(names) if not listed or isinstance(listed[1], dict) else listed[1]
    samples = [Sample(path, split_of(path.split('/')[0] + '/x'), classes.index(class_of(path)))
               for path in files if class_of(path) in classes]
    used = {sample.label for sample in samples if sample.split in (None, 'train')}
    if idle := [name for index, name in enumerate(classes) if index not in used]:
        raise ValueError(f'{folder.root}: class {idle[0]!r} has no training image; add some, or '
                         'delete its folder' + (f' and its line in {listed[0]}' if listed else ''))
    if len(classes) < 2:
        raise ValueError(f'{folder.root}: only one class folder, {classes[0]!r}; a classifier needs '
                         'two')
    return assemble(folder, 'class folders', classes, samples)


RECOGNISED: dict[str, Callable[[Folder], list[Any]]] = {
    'COCO': find_coco, 'PASCAL VOC': find_voc, 'YOLO': find_yolo, 'label maps': find_maps}
READERS = {'COCO': read_coco, 'PASCAL VOC': read_voc, 'YOLO': read_yolo}


def write_index(data: Data, folder: Path) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """Writes what the toolboxes' data sets read: COCO files of boxes, or lists of names.

    Returns:
        split -> (path, what `Sample.label_map` starts with), an entry for each such place.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for split, samples in (('train', data.train), ('val', data.val)):
        groups: dict[tuple[str, ...], list[Sample]] = defaultdict(list)
        for sample in samples:
            groups[sample.label_map[:-1]].append(sample)
        written[split] = [(str((folder / f'{split}{number or ""}').resolve()) + (
            '.json' if data.layout in READERS else '.txt'), place)
            for number, place in enumerate(groups)]
        for path, place in written[split]:
            text = json.dumps(coco_content(data, samples)) if data.layout in READERS else ''.join(
                f'{sample.label_map[-1]}\n' if place else f'{sample.path} {sample.label}\n'
                for sample in groups[place])
            part = Path(f'{path}.{os.getpid()}')
            part.write_text(text, 'utf-8')
            part.replace(path)
    return written


def coco_content(data: Data, samples: Sequence[Sample]) -> dict:
    """COCO's lists; category k + 1 is class k."""
    annotations = []
    for number, sample in enumerate(samples, 1):
        for one in sample.objects:
            kept = {key: value for key, value in one.items() if value is not None}
            annotations.append(dict(kept, id=len(annotations) + 1, image_id=number,
                                    category_id=one['category_id'] + 1))
    return dict(
        images=[dict(id=number, file_name=sample.path, width=sample.size[0], height=sample.size[1])
                for number, sample in enumerate(samples, 1)],
        categories=[dict(id=number, name=name) for number, name in enumerate(data.classes, 1)],
        annotations=annotations)
