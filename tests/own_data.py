"""Tiny folders of data in every layout that --data reads; a change makes one of them wrong."""
import json
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = ('ant', 'bee')
VOC = ('<annotation><filename>wrong.jpg</filename>{}</annotation>',
       '<object><name>{}</name><bndbox><xmin>4</xmin><ymin>6</ymin><xmax>20</xmax><ymax>30</ymax>'
       '</bndbox></object>')


def draw(path, value=0, mode='RGB', size=(48, 40)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (value, ) * 3 if mode == 'RGB' else value).save(path)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if isinstance(text, str) else json.dumps(text))


def coco(root, split='', images='images', boxes=False, count=10):
    """As Label Studio writes it, or with a split as CVAT; the boxes, or polygons, are the same."""
    for number in range(count):
        draw(root / images / f'{split}{number}.jpg', number)
    write(root / (f'annotations/instances_{split}.json' if split else 'result.json'), dict(
        images=[dict(id=number, width=48, height=40, file_name=f'..\\up\\{split}{number}.jpg')
                for number in range(count)],
        categories=[dict(id=5 * index + 3, name=name) for index, name in enumerate(NAMES)],
        annotations=[dict(id=number, image_id=number, category_id=5 * (number % 2) + 3, **(
            {} if boxes else dict(segmentation=[[4, 6, 20, 6, 20, 30, 4, 30]])),
            bbox=[4, 6, 16, 24]) for number in range(count)]))


def voc(root, count=10):
    for number in range(count):
        draw(root / f'JPEGImages/{number}.jpg', number)
        write(root / f'Annotations/{number}.xml', VOC[0].format(VOC[1].format(NAMES[number % 2])))
    for split, part in (('train', range(8)), ('val', range(8, count))):
        write(root / f'ImageSets/Main/{split}.txt', '\n'.join(map(str, part)))
        write(root / f'ImageSets/Segmentation/{split}.txt', '\n'.join(map(str, part[-2:])))
        for number in part[-2:]:
            draw(root / f'SegmentationClass/{number}.png', number % 2 + 1, 'L')


def yolo(root, count=5):
    for split in ('train', 'valid'):
        for number in range(count):
            draw(root / f'{split}/images/{number}.jpg', number)
            write(root / f'{split}/labels/{number}.txt', f'{number % 2} 0.25 0.45 {1 / 3} 0.6\n')
    write(root / 'data.yaml', 'names: [ant, bee]\ntrain: ../nowhere\n')


def maps(root, ids=(0, 1, 2), names='ant\nbee\n', count=5):
    for split in ('training', 'validation'):
        for number in range(count):
            draw(root / f'images/{split}/{number}.jpg', number)
            label_map = np.resize(np.array(ids, np.uint8), (40, 48))
            (root / f'annotations/{split}').mkdir(parents=True, exist_ok=True)
            Image.fromarray(label_map).save(root / f'annotations/{split}/{number}.png')
    if names:
        write(root / 'classes.txt', names)


def classes(root, count=6):
    for name in NAMES:
        for number in range(count):
            draw(root / name / f'{number}.jpg', number)


def edit_json(root: Path, change):
    """Changes the content of the folder's COCO file."""
    path = next(root.rglob('*.json'))
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
