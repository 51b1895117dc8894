"""Broken images, annotations that contradict them, and losses that are no numbers."""
import json
import shutil

import numpy as np
import pytest

pytest.importorskip('mmengine', reason='runs need a toolbox')

import small_runs as runs  # noqa: E402
import torch  # noqa: E402
from mmengine.dataset import BaseDataset  # noqa: E402
from PIL import Image  # noqa: E402

from lape_mm.requirements import TOOLBOXES, missing  # noqa: E402
from lape_mm.runs.engine.check_sample import check_sample, insert_check  # noqa: E402
from lape_mm.runs.engine.finite_loss import FiniteLossHook  # noqa: E402
from lape_mm.runs.engine.samples import (  # noqa: E402
    IN_A_ROW,
    BadSample,
    Draw,
    GuardedDataset,
    SeededBatches,
    seed_from,
)


class Listed(torch.utils.data.Dataset):
    """Answers a draw of each generator, and fails for what is listed as bad."""

    metainfo = {'classes': ('a', 'b')}

    def __init__(self, length, bad=()):
        self.length, self.bad = length, bad

    def __len__(self):
        return self.length

    def get_data_info(self, index):
        return {'img_path': f'{index}.jpg'}

    def __getitem__(self, index):
        if index in self.bad:
            raise OSError('cannot be decoded')
        return index, np.random.rand(), torch.rand(1).item()


def guarded(tmp_path, bad=(), **given):
    return GuardedDataset(Listed(30, bad), report=tmp_path / 'bad.jsonl',
                          **{'part': 'train', **given})


def test_a_sample_hangs_on_its_place_alone(tmp_path):
    dataset, key = guarded(tmp_path), (0, 3, 7, 1)
    first = dataset[Draw(5, key)]
    np.random.seed(9), torch.manual_seed(9)
    assert dataset[Draw(5, key)] == first
    others = [dataset[Draw(5, other)] for other in
              ((1, 3, 7, 1), (0, 4, 7, 1), (0, 3, 8, 1), (0, 3, 7, 2))]
    assert len({first, *others}) == 5  # nor is a repeated image augmented alike


def test_batches_carry_their_place_through_workers_and_ranks(monkeypatch, tmp_path):
    def batches(rank, world, size, skip=0):
        monkeypatch.setattr('lape_mm.runs.engine.samples.get_dist_info', lambda: (rank, world))
        sampler = torch.utils.data.BatchSampler(range(rank, 24, world), size, drop_last=False)
        made = SeededBatches(sampler, seed=4)
        made.skip = skip
        return list(made)
    one = batches(0, 1, 4)
    assert len({key for batch in one for _, key in batch}) == 24
    two = [[*a, *b] for a, b in zip(batches(0, 2, 2), batches(1, 2, 2))]
    assert [sorted(batch) for batch in two] == [sorted(batch) for batch in one]
    assert batches(0, 1, 4, skip=2) == one[2:]
    loader = torch.utils.data.DataLoader(
        guarded(tmp_path), batch_sampler=SeededBatches(torch.utils.data.BatchSampler(
            range(24), 4, drop_last=False), seed=4), num_workers=2, collate_fn=list)
    assert len(list(loader)) == 6


def test_endless_batches_go_on_with_the_next_epoch():
    class Sampler(list):
        def set_epoch(self, epoch):
            self[:] = [10 * epoch + place for place in range(4)]
    sampler = Sampler(range(4))
    stream = iter(SeededBatches(torch.utils.data.BatchSampler(sampler, 2, False), seed=0,
                                endless=True))
    assert [[draw.sample for draw in next(stream)] for _ in range(5)] == [
        [0, 1], [2, 3], [10, 11], [12, 13], [20, 21]]
    with pytest.raises(BadSample, match='smaller than one batch'):
        next(iter(SeededBatches(torch.utils.data.BatchSampler(range(2), 3, True), seed=0,
                                endless=True)))


def test_a_bad_sample_is_replaced_named_and_counted(tmp_path):
    dataset = guarded(tmp_path, bad=(4, 5))
    found = dataset[Draw(4, (0, 0, 0, 0))]
    assert found[0] not in (4, 5) and dataset[Draw(4, (0, 0, 0, 0))] == found
    lines = [json.loads(line) for line in (tmp_path / 'bad.jsonl').open()]
    assert lines[0] == dict(part='train', index=4, what='4.jpg: cannot be decoded')
    assert guarded(tmp_path, bad=(4,), part='val')[4] is None
    with pytest.raises(BadSample, match='4.jpg: cannot be decoded'):
        guarded(tmp_path, bad=(4,), strict=True)[4]
    with pytest.raises(BadSample, match=f'{IN_A_ROW} samples in a row'):
        guarded(tmp_path, bad=range(30))[4]


def test_it_is_the_dataset_in_all_else(tmp_path):
    dataset = guarded(tmp_path)
    assert dataset.metainfo == Listed.metainfo and len(dataset) == 30
    dataset.bad = (1, )
    assert dataset.dataset.bad == (1, )
    with pytest.raises(AttributeError):
        getattr(dataset, 'nothing')  # noqa: B009


def test_all_generators_are_seeded():
    import random

    def draws():
        return random.random(), np.random.rand(), torch.rand(1).item()
    seed_from((1, 2))
    first = draws()
    seed_from((1, 3))
    assert not set(first) & set(draws())
    seed_from((1, 2), devices=True)
    assert draws() == first


@pytest.mark.parametrize('changes, said', [
    (dict(height=31), r'30 x 40 pixels .* annotation says 31 x 40'),
    (dict(height=40, width=30), 'rotated by EXIF'),
    (dict(gt_seg_map=np.zeros((30, 41))), r'large as the image, got the shape \(30, 41\)'),
    (dict(gt_seg_map=np.zeros((30, 40, 3))), 'one channel'),
    (dict(gt_seg_map=np.full((30, 40), 3)), 'label 3 in the map, expected 0 to 2 or 255')])
def test_an_annotation_of_another_image_is_seen(changes, said):
    results = dict(img_path='x.jpg', seg_map_path='x.png', ori_shape=(30, 40), height=30, width=40,
                   gt_seg_map=np.full((30, 40), 255))
    assert check_sample(results, 3) is results
    with pytest.raises(ValueError, match=said):
        check_sample({**results, **changes}, 3)


def test_the_check_stands_behind_all_loading():
    dataset = BaseDataset(pipeline=[], lazy_init=True, metainfo=dict(classes=('a', )))

    class LoadA:
        pass

    class LoadB(LoadA):
        pass

    class Flip(LoadA):
        pass
    dataset.pipeline.transforms = [LoadA(), LoadB(), Flip()]
    insert_check(dataset)
    assert [type(one).__name__ for one in dataset.pipeline.transforms] == [
        'LoadA', 'LoadB', 'partial', 'Flip']


def small(task, tmp_path, monkeypatch):
    """A data set of the test's own, drawn by a first run, and the arguments of further ones."""
    if lacking := missing(*TOOLBOXES[runs.SCOPES[task]]):
        pytest.skip(f'needs {", ".join(lacking)}')
    monkeypatch.setenv('LAPE_MM_SCENES', str(tmp_path / 'scenes'))
    options = {'train_cfg.max_epochs': 1} if task in ('deit', 'mask_rcnn') else \
        {'train_cfg.max_iters': 8, 'train_cfg.val_interval': 8}
    from lape_mm.runs.config import load_config
    from lape_mm.runs.session import draw_scenes
    given = runs.arguments(task, tmp_path / 'run', options=options)
    draw_scenes(load_config(given.config, options=given.cfg_options, work_dir=given.work_dir))
    return given, tmp_path / 'log'


def again(given, log, **changes):
    shutil.rmtree(given.work_dir, ignore_errors=True)
    log.unlink(missing_ok=True)
    status = runs.run(type(given)(**{**vars(given), **changes}), log)
    return status, log.read_text()


@pytest.mark.parametrize('part, workers', [('train', 2), ('val', 0)])
def test_a_broken_image_does_not_end_a_run(part, workers, tmp_path, monkeypatch):
    given, log = small('deit', tmp_path, monkeypatch)
    for loader in ('train', 'val'):
        given.cfg_options[f'{loader}_dataloader.num_workers'] = workers
    image = sorted((tmp_path / f'scenes/imagenet/{part}').glob('*/*.*'))[0]
    image.write_bytes(image.read_bytes()[:200])
    status, text = again(given, log)
    assert status == 0, text
    assert f'left out: {image}' in text and '1 samples could not be used' in text
    status, text = again(given, log, strict_data=True)
    assert status == 2 and text.splitlines()[-1].startswith(f'error: {image}'), text
    assert 'Traceback' not in text


def test_grey_transparent_and_deep_images_are_read_as_colour(tmp_path, monkeypatch):
    given, log = small('deit', tmp_path, monkeypatch)
    images = sorted((tmp_path / 'scenes/imagenet/train').glob('*/*.*'))
    for image, mode in zip(images, ('L', 'RGBA', 'P', '16 bits')):
        with Image.open(image) as opened:
            grey = np.asarray(opened.convert('L')).astype(np.uint16) * 257
            made = Image.fromarray(grey) if mode == '16 bits' else opened.convert(mode)
        image.unlink()
        made.save(image.with_suffix('.png'))
    status, text = again(given, log, strict_data=True)
    assert status == 0, text


def steps(hook, gradients):
    layer = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=.1)
    optimizer.register_step_pre_hook(hook._drop)
    for gradient in gradients:
        before = layer.weight.detach().clone()
        layer.weight.grad = torch.full((1, 2), gradient)
        layer.bias.grad = torch.zeros(1)
        optimizer.step()
        yield torch.equal(before, layer.weight)
    assert layer.weight.isfinite().all()


def test_a_step_that_would_spoil_the_weights_is_left_out():
    assert list(steps(FiniteLossHook(), [1., float('nan'), 1., float('inf'), 1.])) == [
        False, True, False, True, False]


def spoil():
    """In a child: the loss is not a number from the sixth iteration on."""
    import mmpretrain.models
    loss = mmpretrain.models.LinearClsHead.loss
    calls = []

    def spoilt(self, *args, **kwargs):
        calls.append(1)
        found = loss(self, *args, **kwargs)
        return {name: value * (float('nan') if len(calls) > 5 else 1)
                for name, value in found.items()}
    mmpretrain.models.LinearClsHead.loss = spoilt


def test_a_loss_that_is_not_finite_is_named_and_ends_the_run(tmp_path, monkeypatch):
    given, log = small('deit', tmp_path, monkeypatch)
    given.cfg_options.update({'train_cfg.max_epochs': 4, 'optim_wrapper.clip_grad': None,
                              'default_hooks.finite_loss.patience': 3})
    status = runs.run(given, log, before=spoil)
    text = log.read_text()
    closing = text.splitlines()[-1]
    assert status == 1 and closing.startswith('error: iteration 8: loss is nan; its images: '), text
    assert closing.count('/scenes/imagenet/train/') == 3 and '3 such iterations in a row' in closing
    assert text.count('Its update is left out') == 2
    kept = torch.load(runs.last(tmp_path / 'run'), weights_only=False)['state_dict']
    assert all(value.isfinite().all() for value in kept.values())
