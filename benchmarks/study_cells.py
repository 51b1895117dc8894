"""The studies of benchmarks/studies.py: their cells, configs and seeds.

All cells of a study share config, data and seeds; only the settings that a cell names differ.
Those on all of CIFAR-100 are for a GPU.
"""
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

JOININGS = ('default', 'lape', 'pvg', 'mpvg')
KINDS = ('learnable', 'sincos_1d', 'sincos_2d', 'relative')


@dataclass(frozen=True)
class Cell:
    """One setting of a study.

    Attributes:
        joining: a name, or settings.
        options: --cfg-options.
        start: study and cell; the backbone starts from their run of the same seed.
        same: study and cell whose runs this cell shows.
        against: the cell to compare with, if not the study's baseline.
    """

    joining: str | Mapping
    options: Mapping = field(default_factory=dict)
    start: tuple[str, str] | None = None
    same: tuple[str, str] | None = None
    against: str | None = None


@dataclass(frozen=True)
class Study:
    """Runs of one config that differ in their cell's settings and their seed.

    Attributes:
        title: heading of the table.
        config: path below configs, without suffix.
        metric: compared with so many ``digits``.
        cells: by name.
        baseline: the cell to compare with, unless a cell names another.
        data: digest of the images and labels, see `studies.digest`.
        options: --cfg-options of all runs.
        earlier: the training loop that made the records and has been removed since; delete this
            once the study has been run again.
    """

    title: str
    config: str
    metric: str
    cells: Mapping[str, Cell]
    data: str
    baseline: str = 'default'
    digits: int = 2
    seeds: tuple[int, ...] = (0, 1, 2)
    options: Mapping = field(default_factory=dict)
    earlier: str = ''


def joinings(start: str | None = None) -> dict[str, Cell]:
    """One cell for each joining from scratch and, given a study, one from that study's runs."""
    found = {name: Cell(name) for name in JOININGS}
    if start:
        found |= {f'{name}, pre-trained': Cell(
            name, start=(start, name),
            against=None if name == 'default' else 'default, pre-trained') for name in JOININGS}
    return found


BFLOAT16 = {'optim_wrapper.type': 'lape_mm.BFloat16OptimWrapper'}
ON_GPU = {'train_cfg.val_interval': 10, 'default_hooks.checkpoint.interval': 10,
          'train_dataloader.num_workers': 4, 'val_dataloader.num_workers': 1, **BFLOAT16}
AVERAGED = {'model.backbone.class_token': False}
GRAFT = {'model.backbone.init_cfg.graft': True}
CLASSIFIER = 'studies/deit_imagenet-mini'
TABLE_2 = 'vit_lite/vit-lite-7-default_1xb128-310e_cifar100'
DEVICE_LOOP, GRAPHS = 'DeviceTrainLoop', 'gpu_study.py'
# digests; docs/evidence.md describes the data
IMAGENET_MINI, CIFAR100, ADE_MINI, COCO_MINI = (
    'e97ddd1f8b799983', '31970b77213fbddc', '996c090a47cf060b', '9e3407db1597dc84')
STUDIES = {
    'imagenet_mini': Study(
        'DeiT on imagenet_mini', CLASSIFIER, 'accuracy/top1', joinings(), IMAGENET_MINI,
        seeds=(0, 1, 2, 3, 4), earlier=DEVICE_LOOP),
    'cifar100_subset': Study(
        'ViT-Lite on 5,000 images of CIFAR-100', 'studies/vit-lite_cifar100-subset',
        'accuracy/top1', joinings(), CIFAR100, earlier=DEVICE_LOOP),
    'ade_mini': Study(
        'UperNet with ViT-Adapter on ade_mini (CamVid in ADE ids)',
        'studies/upernet_vit-adapter_ade-mini', 'mIoU', joinings('imagenet_mini'), ADE_MINI),
    'coco_mini': Study(
        'Mask R-CNN with ViT-Adapter on the people of coco_mini',
        'studies/mask-rcnn_vit-adapter_coco-mini', 'coco/bbox_mAP_50',
        joinings('imagenet_mini'), COCO_MINI, digits=4),
    # table 5: the last of six layers, layers 4 and 2 for pos_11, pos_8, pos_5 of the paper's twelve
    'ablations': Study(
        'MPVG and what it is made of, DeiT on imagenet_mini', CLASSIFIER, 'accuracy/top1', {
            **{name: Cell(name, same=('imagenet_mini', name))
               for name in ('mpvg', 'pvg', 'default')},
            'last term of the last layer': Cell(dict(first_layer=1, last=5)),
            'last term of layer 4': Cell(dict(first_layer=1, last=4)),
            'last term of layer 2': Cell(dict(first_layer=1, last=2)),
            'table 6, with layer 0': Cell(dict(first_layer=0, last=0)),
            'table 6, not hierarchical': Cell(dict(first_layer=1, hierarchical=False, last=0)),
            'table 6, without x + PE': Cell(dict(add_to_input=False, first_layer=1, last=0)),
            'figure 5a, tokens averaged alone': Cell('default', AVERAGED),
            'figure 5b, last term alone': Cell(dict(last=0)),
        }, IMAGENET_MINI, baseline='mpvg', earlier=DEVICE_LOOP),
    'kinds': Study(
        'Kinds of position embedding, DeiT on imagenet_mini', CLASSIFIER, 'accuracy/top1', {
            f'{joining}, {kind}': replace(
                Cell(joining, same=('imagenet_mini', joining)) if kind == 'learnable'
                else Cell(joining, {'model.backbone.position': kind}),
                against=f'default, {kind}' if joining == 'lape' else None)
            for kind in KINDS for joining in ('default', 'lape')},
        IMAGENET_MINI, baseline='default, learnable', earlier=DEVICE_LOOP),
    # MPVG's last term is a constant vector under averaged tokens (docs/joinings.md). A second free
    # bias gets the same gradient and AdamW step as the first: together they move twice as far
    'controls': Study(
        'Layer-wise PE against averaged tokens, and a control of MPVG, DeiT on imagenet_mini',
        CLASSIFIER, 'accuracy/top1', {
            'default': Cell('default'),
            'default, averaged': Cell('default', AVERAGED),
            'lape': Cell('lape'),
            'lape, averaged': Cell('lape', AVERAGED),
            'pvg, class token (figure 6a)': Cell(
                dict(first_layer=1), {'model.backbone.class_token': True}),
            'pvg': Cell('pvg'),
            'mpvg': Cell('mpvg'),
            'pvg, two last biases': Cell('pvg', {
                'optim_wrapper.constructor': 'DefaultOptimWrapperConstructor',
                'optim_wrapper.paramwise_cfg': dict(
                    _delete_=True, norm_decay_mult=0., bias_decay_mult=0., custom_keys={
                        'pos_embed': dict(decay_mult=0.),
                        'backbone.norm.bias': dict(lr_mult=2., decay_mult=0.)}),
            }, against='pvg'),
        }, IMAGENET_MINI),
    'lape_tables': Study(
        "Tables 7 and 8 of LaPE's paper, DeiT on imagenet_mini", CLASSIFIER, 'accuracy/top1', {
            **{name: Cell(name) for name in ('default', 'lape')},
            'share': Cell('share'),
            'unshare': Cell('unshare'),
            'lape, sharing PE': Cell(dict(add_to_input=False, first_layer=0, hierarchical=False)),
            **{f'table 8, {written}': Cell(dict(add_to_input=False, first_layer=0, norm=norm))
               for written, norm in {
                   'w': 'identity', 'g w': 'scalar', 'G w': 'channel', 'G w + b': 'affine',
                   'Norm(w)': 'norm', 'g Norm(w)': 'norm_scalar', 'G Norm(w)': 'norm_channel',
               }.items()},
        }, IMAGENET_MINI),
    'grafting_ade': Study(
        'A pre-trained ViT in ViT-Adapter, UperNet on ade_mini',
        'studies/upernet_vit-adapter-small_ade-mini', 'mIoU', {
            'default': Cell('default'),
            'pvg, grafted': Cell('pvg', GRAFT),
            'mpvg, grafted': Cell('mpvg', GRAFT),
            'mpvg, norms at one': Cell('mpvg'),
            'default, from scratch': Cell('default', {'model.backbone.init_cfg': None}),
        }, ADE_MINI),
    'grafting_coco': Study(
        'A pre-trained ViT in ViT-Adapter, Mask R-CNN on the people of coco_mini',
        'studies/mask-rcnn_vit-adapter-small_coco-mini', 'coco/bbox_mAP_50', {
            'default': Cell('default'),
            'mpvg, grafted': Cell('mpvg', GRAFT),
        }, COCO_MINI, digits=4),
    'cifar100_table2': Study(
        'ViT-Lite-7/4 on CIFAR-100, the recipe of table 2', TABLE_2, 'accuracy/top1', joinings(),
        CIFAR100, options=ON_GPU),
    'cifar100_100e': Study(
        'ViT-Lite-7/4 on CIFAR-100, the recipe of table 2 in 100 epochs', TABLE_2, 'accuracy/top1',
        joinings(), CIFAR100, earlier=GRAPHS,
        options={**ON_GPU, 'train_cfg.max_epochs': 100, 'param_scheduler.1.end': 90}),
    'cifar100_full': Study(
        'A small ViT on CIFAR-100, eight epochs', 'studies/vit_cifar100', 'accuracy/top1', {
            'default': Cell('default'),
            'default, averaged': Cell('default', AVERAGED),
            'lape': Cell('lape'),
            'lape, averaged': Cell('lape', AVERAGED),
            'pvg': Cell('pvg'),
            'mpvg': Cell('mpvg'),
        }, CIFAR100, options=BFLOAT16, earlier=GRAPHS),
}
