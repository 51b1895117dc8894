"""Writes a report: figures, arrays, a summary, and one page with all of them."""
from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from .figures import Pictures
from .page import page
from .pe_per_layer import find_encoder, pe_per_layer
from .record import record
from .sections import SECTIONS, Measured, measure

Analysis = tuple[Mapping[str, Measured], Mapping[str, str]]


def analyse(model: nn.Module, images: Sequence[Tensor], **settings: str) -> Analysis:
    """Measures a model on images; returns each section's arrays and numbers, and its settings.

    ``model`` and ``images`` are as for `record.record`; ``settings`` adds further settings.
    """
    encoder, seen = find_encoder(model), record(model, images)
    height, width = images[0].shape[-2:]
    entries = pe_per_layer(model, (height, width))
    ways = Counter(entry.way for entry in entries if entry.values is not None)
    return measure(entries, seen), {
        'backbone': type(encoder).__name__,
        'layers that receive PE': ', '.join(f'{count} of {encoder.depth} by {way}'
                                            for way, count in ways.items()) or 'none',
        'class token': 'yes' if seen.class_token else 'no',
        'parameters of the backbone': f'{sum(p.numel() for p in encoder.parameters()):,}',
        'images': f'{len(images)} of {height} x {width} pixels', **settings}


def write_report(models: Mapping[str, Analysis], pictures: Pictures, out: Path, title: str) \
        -> list[dict]:
    """Writes figures (PNG and PDF), arrays (npz), summary.json and report.html into a folder.

    ``models`` maps labels to analyses. ``pictures`` are the images as arrays (H, W, 3) in 0..1.
    Returns the summary's rows.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for section in SECTIONS:
        found = {label: parts[section.key] for label, (parts, _) in models.items()
                 if section.key in parts}
        if not found:
            continue
        figure = section.draw({label: arrays for label, (arrays, _) in found.items()}, pictures)
        files = [f'{section.key}.png', f'{section.key}.pdf']
        for file in files:
            figure.savefig(out / file, dpi=110)
            figure.set_layout_engine('none')  # do not lay it out twice
        kept: dict[str, Any] = {
            f'{re.sub(r"[^-A-Za-z0-9]+", "_", label)}.{name}': np.asarray(value, dtype=np.float32)
            for label, (arrays, _) in found.items() for name, value in arrays.items()}
        np.savez_compressed(out / f'{section.key}.npz', **kept)
        rows.append(dict(key=section.key, title=section.title, paper=section.paper,
                         meaning=section.meaning, figures=files, arrays=f'{section.key}.npz',
                         numbers={label: numbers for label, (_, numbers) in found.items()}))
    settings = {label: dict(named) for label, (_, named) in models.items()}
    (out / 'summary.json').write_text(json.dumps(
        dict(title=title, models=settings, rows=rows), indent=1) + '\n')
    names = dict.fromkeys(name for named in settings.values() for name in named)
    (out / 'report.html').write_text(page(title, [
        dict(title='Settings', tables=[dict(style='settings', head=['', *settings], rows=[
            (name, *(named.get(name, '') for named in settings.values())) for name in names])]),
        *(dict(title=row['title'], note=row['paper'], text=row['meaning'],
               figure=base64.b64encode((out / row['figures'][0]).read_bytes()).decode(),
               tables=[dict(rows=number_rows(row['numbers']))]) for row in rows)],
        'What position embedding (PE) does in a model. MPVG is AAAI 2025, LaPE is ICCV 2023.'))
    return rows


def number_rows(numbers: Mapping[str, Mapping]) -> list[list[str]]:
    """Table rows, one per model and quantity: its name, then one number or one per layer."""
    return [[f'{label}: {name}', *('–' if value is None else f'{value:.3g}' for value in (
                values if isinstance(values, list) else [values]))]
            for label, found in numbers.items() for name, values in found.items()]
