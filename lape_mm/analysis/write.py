"""Writes a report: figures, arrays, a summary, and one page with all of them."""
from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from .figures import draw
from .page import analysis_page
from .pe_per_layer import WAYS, find_encoder, pe_per_layer
from .record import Track, record
from .sections import SECTIONS, Arrays, Numbers, measure


@dataclass(frozen=True)
class Analysis:
    """What a report says about one model.

    Attributes:
        parts: a section's key -> its arrays and numbers.
        settings: name -> text, for the table of settings.
    """

    parts: Mapping[str, tuple[Arrays, Numbers]]
    settings: Mapping[str, str]


def analyse(model: nn.Module, images: Sequence[Tensor], track: Track = iter,
            **settings: str) -> Analysis:
    """Measures a model on images.

    Args:
        model: a backbone of this package, or a model around one.
        images: (3, H, W) each, of one size, normalised.
        track: see `record.record`.
        settings: more entries for the table of settings.

    Raises:
        ValueError: see `record.record`.
    """
    seen = record(model, images, track)
    height, width = images[0].shape[-2:]
    size = height, width
    return Analysis(measure(pe_per_layer(model, size), seen),
                    {**describe(model, size), 'images': str(len(images)), **settings})


def describe(model: nn.Module, size: tuple[int, int]) -> dict[str, str]:
    """The settings of a model that its position embedding depends on."""
    encoder = find_encoder(model)
    grid = encoder.grid_of(size)
    ways = dict.fromkeys(WAYS, 0)
    for entry in pe_per_layer(model, size):
        ways[entry.way] += entry.values is not None
    tables = ', '.join(encoder.table_names[:2]) + (', ...' if encoder.table_names[2:] else '')
    return {
        'backbone': type(encoder).__name__,
        'layers that receive PE': ', '.join(f'{count} by {way}' for way, count in
                                            ways.items() if count) or 'none',
        'last LN receives PE': 'yes' if encoder.last_pe_norm is not None else 'no',
        'class token': 'yes' if encoder.has_class_token else 'no',
        'layers': str(encoder.depth), 'channels': str(encoder.embed_dim),
        'PE tables': tables or 'none (relative bias or nothing)',
        'parameters of the backbone': f'{sum(p.numel() for p in encoder.parameters()):,}',
        'image': f'{size[0]} x {size[1]} pixels, {grid[0]} x {grid[1]} tokens'}


def write_report(models: Mapping[str, Analysis], pictures: Sequence[np.ndarray],
                 out: Path, title: str, track: Track = iter) -> list[dict]:
    """Writes figures (PNG and PDF), arrays (npz), summary.json and report.html.

    Args:
        models: label -> its analysis.
        pictures: (H, W, 3) each, 0..1, of the images.
        out: folder; it is made, and files of an earlier report are replaced.
        title: of the page.
        track: yields the sections and may show progress.

    Returns:
        the rows of the summary.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for section in track(list(SECTIONS)):
        parts = {label: analysis.parts[section.key] for label, analysis in models.items()
                 if section.key in analysis.parts}
        if not parts:
            continue
        figure = draw(section.key, {label: arrays for label, (arrays, _) in parts.items()},
                      pictures)
        files = [f'{section.key}.png', f'{section.key}.pdf']
        for file in files:
            # without a date in the PDF, equal arrays give equal files
            figure.savefig(out / file, dpi=110,
                           metadata={'CreationDate': None} if file.endswith('pdf') else None)
            figure.set_layout_engine('none')  # do not lay it out twice
        kept: dict[str, Any] = {
            f'{plain(label)}.{name}': np.asarray(value, dtype=np.float32)
            for label, (arrays, _) in parts.items() for name, value in arrays.items()}
        np.savez_compressed(out / f'{section.key}.npz', **kept)
        rows.append(dict(key=section.key, title=section.title, paper=section.paper,
                         meaning=section.meaning, figures=files, arrays=f'{section.key}.npz',
                         numbers={label: numbers for label, (_, numbers) in parts.items()}))
    settings = {label: dict(analysis.settings) for label, analysis in models.items()}
    (out / 'summary.json').write_text(json.dumps(
        dict(title=title, models=settings, rows=rows), indent=1) + '\n')
    (out / 'report.html').write_text(analysis_page(title, settings, rows, out))
    return rows


def plain(label: str) -> str:
    """A label as part of an array's name."""
    return re.sub(r'[^\w-]+', '_', label).strip('_') or 'model'
