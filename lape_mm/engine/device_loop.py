"""Training from images that lie on the device, for data sets of small images such as CIFAR.

``--cfg-options train_cfg.type=lape_mm.DeviceTrainLoop`` turns it on for any config whose train_cfg
names its type: nothing else changes. No worker process is needed, and the device waits for none.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from mmengine.device import get_device
from mmengine.dist import get_rank, is_distributed, sync_random_seed
from mmengine.logging import print_log
from mmengine.registry import DATA_SAMPLERS, DATASETS
from mmengine.runner import EpochBasedTrainLoop

from lape_mm.registry import LOOPS

from .device_augment import split_pipeline

AT_ONCE = 8  # batches that are augmented together: the draws are an image's own all the same


class DeviceLoader:
    """What a config's ``train_dataloader`` yields, from images kept on the device.

    The steps of the data set's pipeline that are not random run once, when the images are read;
    the random ones run on batches, see `lape_mm.engine.device_augment`. Sampler, batch size and
    drop_last are the config's; workers and collate_fn have no meaning here.

    Args:
        settings: a ``train_dataloader``. Images that leave the steps before the first random one
            have to have one size, (3, H, W) in uint8.
        seed: of sampler and augmentation; None for a random one.
        device: where images are kept; None for the one that is trained on.

    Raises:
        ValueError: the pipeline has a step that is not known here, or images of several sizes.
    """

    def __init__(self, settings: Mapping, *, seed: int | None = None,
                 device: str | torch.device | None = None):
        if settings.get('batch_sampler'):
            raise ValueError('DeviceLoader takes sampler and batch_size, no batch_sampler')
        pipeline, self.steps = split_pipeline(settings['dataset']['pipeline'])
        self.dataset = DATASETS.build({**settings['dataset'], 'pipeline': pipeline})
        if hasattr(self.dataset, 'full_init'):
            self.dataset.full_init()
        self.seed = sync_random_seed() if seed is None else seed
        self.sampler = DATA_SAMPLERS.build(
            dict(settings['sampler']), default_args=dict(dataset=self.dataset, seed=self.seed))
        self.batch_size = settings['batch_size']
        self.drop_last = settings.get('drop_last', False)
        self.images, self.samples = self._read(device or get_device())
        self.skip = 0  # batches that the next epoch passes over

    def _read(self, device: str | torch.device) -> tuple[torch.Tensor, list]:
        """All images, (N, 3, H, W) in uint8 on the device, and their data samples."""
        images, samples = torch.empty(0), []
        for index in range(len(self.dataset)):
            packed = self.dataset[index]
            image = packed['inputs']
            if not index:
                images = torch.empty(len(self.dataset), *image.shape, dtype=torch.uint8)
            if image.shape != images.shape[1:] or image.dtype != torch.uint8:
                raise ValueError(f'image {index} is {tuple(image.shape)}, {image.dtype}, after '
                                 f'{tuple(images.shape[1:])}, uint8: one size is needed')
            images[index] = image
            samples.append(packed['data_samples'])
        print_log(f'{len(images)} images, {images.nbytes / 2 ** 20:.0f} MiB, on {device}',
                  logger='current')
        return images.to(device), samples

    def __len__(self) -> int:
        """Batches an epoch, on this device."""
        whole, rest = divmod(len(self.sampler), self.batch_size)
        return whole + bool(rest and not self.drop_last)

    @torch.no_grad()
    def augment(self, images: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        """(B, 3, H, W) through the random steps, uint8 as before."""
        for step in self.steps:
            images = step(images, rng)
        return images

    def __iter__(self) -> Iterator[dict]:
        order = list(self.sampler)[:len(self) * self.batch_size]
        skip, self.skip = self.skip * self.batch_size, 0
        # the sampler knows its epoch, so that a resumed run goes on with new draws
        rng = np.random.default_rng((self.seed, getattr(self.sampler, 'epoch', 0), get_rank()))
        several = AT_ONCE * self.batch_size
        for start in range(0, len(order), several):
            indices = order[start:start + several]
            images = self.images[torch.tensor(indices, device=self.images.device)]
            images = self.augment(images, rng)
            for first in range(max(0, skip - start), len(indices), self.batch_size):
                batch = slice(first, first + self.batch_size)
                yield dict(inputs=images[batch],
                           data_samples=[self.samples[index].clone() for index in indices[batch]])


@LOOPS.register_module()
class DeviceTrainLoop(EpochBasedTrainLoop):
    """mmengine's EpochBasedTrainLoop on a `DeviceLoader`.

    Args:
        runner, dataloader: as given by the runner; the config's ``train_dataloader``.
        compile: torch.compile of the backbone; True, or a dict of torch.compile's arguments.
        kwargs: max_epochs, val_begin, val_interval, dynamic_intervals.
    """

    def __init__(self, runner, dataloader: Mapping, *, compile: bool | dict = False, **kwargs):
        seed = None if runner._randomness_cfg.get('diff_rank_seed') else runner.seed
        super().__init__(runner, DeviceLoader(dataloader, seed=seed), **kwargs)
        if compile:
            model = runner.model.module if is_distributed() else runner.model
            # in place: names of weights and checkpoints stay as they are
            model.backbone.compile(**(compile if isinstance(compile, Mapping) else {}))
