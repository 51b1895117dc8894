"""Each toolbox's own pictures of predictions and ground truth, under one switch."""
from __future__ import annotations

import os
from pathlib import Path

from mmengine.config import Config, ConfigDict

HOOKS = {'mmdet': 'DetVisualizationHook', 'mmseg': 'SegVisualizationHook',
         'mmpretrain': 'VisualizationHook'}
SWITCHES = {'mmdet': 'draw', 'mmseg': 'draw', 'mmpretrain': 'enable'}


def draw_tested(cfg: Config, folder: str) -> None:
    """Makes a test draw every image, ground truth beside or below the prediction.

    Args:
        cfg: edited in place.
        folder: where pictures go; mmseg puts them into ``vis_data/vis_image`` below it.
    """
    scope, folder = cfg.default_scope, os.path.abspath(folder)
    hooks = cfg.setdefault('default_hooks', ConfigDict())
    hook = hooks.setdefault('visualization', ConfigDict(type=HOOKS[scope]))
    hook[SWITCHES[scope]] = True
    if scope == 'mmdet':
        hook.test_out_dir = folder
    elif scope == 'mmseg':
        cfg.visualizer.save_dir = folder
    else:
        hook.update(out_dir=folder, interval=1)


def find_pictures(*folders: str | os.PathLike) -> tuple[Path, int] | None:
    """The folder below the given ones that holds most pictures, and their number."""
    counts: dict[Path, int] = {}
    for folder in folders:
        for path in Path(folder).rglob('*'):
            if path.suffix.lower() in ('.png', '.jpg', '.jpeg'):
                counts[path.parent] = counts.get(path.parent, 0) + 1
    return max(counts.items(), key=lambda item: item[1]) if counts else None


def switch(scope: str) -> str:
    """The option that turns pictures on."""
    return f'default_hooks.visualization.{SWITCHES[scope]}=True'
