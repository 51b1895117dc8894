"""tools/demo.py: a Gradio page, reachable only from this machine unless --share is given."""
from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from PIL import Image

from lape_mm.requirements import install_hint, missing
from lape_mm.runs.arguments import apply_trust
from lape_mm.runs.errors import RunError
from lape_mm.runtime import Prediction, read_image

from .drawing import draw
from .models import Predict, TorchModel, open_models

LARGEST = '20mb'  # of an upload
MOST_PIXELS = 40_000_000
EXAMPLES = 12


def serve(args: Namespace) -> None:
    """Serves the page until Ctrl-C; ``args`` are those of tools/demo.py."""
    if missing('gradio'):
        raise RunError(install_hint('gradio'))
    from lape_mm.runs.images import find_images
    apply_trust(args)
    models = open_models(args.model, args.joining or [])
    examples = [str(path) for path in find_images(args.images, EXAMPLES)] if args.images else []
    os.environ.setdefault('GRADIO_ANALYTICS_ENABLED', 'False')
    with tempfile.TemporaryDirectory(prefix='lape_mm-demo-') as folder:  # for this user alone
        os.environ['GRADIO_TEMP_DIR'] = folder
        page = build(models, examples, args.score)
        try:
            page.launch(server_name='127.0.0.1', server_port=args.port, share=args.share,
                        max_file_size=LARGEST, show_error=True, footer_links=[],
                        enable_monitoring=False)
        except OSError as error:
            raise RunError(f'--port {args.port}: {error}') from error
        finally:
            page.close()


def build(models: Mapping[str, Predict], examples: list[str], score: float) -> Any:
    """Builds the page: an image and a score on the left, one picture per model on the right.

    Predictions are kept for the session, so a new score only draws them again.
    """
    import gradio as gr

    def read(payload: Any) -> Image.Image | None:
        try:
            return payload and checked(payload.path)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from None

    def show(last: tuple[Image.Image, list[Prediction]] | None, least: float) -> dict:
        drawn = {} if last is None else {place: draw(last[0], found, least)
                                         for place, found in zip(shown, last[1])}
        return {seen: last, **drawn}

    def run(picture: Image.Image | None, least: float) -> dict:
        return show(None if picture is None else (
            picture, [model(picture) for model in models.values()]), least)

    with gr.Blocks(title='lape_mm', analytics_enabled=False) as page:
        gr.Markdown(f'# {", ".join(models)}')
        seen = gr.State()
        with gr.Row():
            with gr.Column(scale=1):
                image = gr.Image(label='Image', sources=['upload', 'clipboard'], elem_id='image')
                # to show our messages; a subclass of gr.Image would write a stub beside this file
                image.preprocess = read  # type: ignore[method-assign]
                least = gr.Slider(0, 1, score, step=.01, label='Least score', elem_id='score')
                button = gr.Button('Run', variant='primary', elem_id='run')
                if examples:
                    gr.Examples(examples, image, elem_id='examples')
            with gr.Column(scale=2):
                shown = [gr.Image(label=name, interactive=False, elem_id=f'out{index}',
                                  buttons=['download', 'fullscreen'],
                                  format='jpeg') for index, name in enumerate(models)]
        for event in (button.click, image.upload):
            event(run, [image, least], [seen, *shown], api_visibility='private')
        least.release(show, [seen, least], [seen, *shown], api_visibility='private')
        if all(isinstance(model, TorchModel) for model in models.values()):
            with gr.Tab('Position embedding'):
                figures = gr.Gallery(label='What position embedding does in this image',
                                     elem_id='position', columns=1, interactive=False)
                gr.Button('Draw', elem_id='draw').click(
                    lambda picture: picture and position(models, picture),
                    image, figures, api_visibility='private')
    return page.queue(api_open=False)


def checked(path: str) -> Image.Image:
    """Reads an upload; raises ValueError with a message for the user."""
    with suppress(Exception):  # a decoder may raise anything
        with Image.open(path) as file:
            width, height = file.size
        if width * height <= MOST_PIXELS:
            return read_image(path)
    raise ValueError(f'{Path(path).name} cannot be read as an image of at most '
                     f'{MOST_PIXELS / 1e6:.0f} megapixels.')


def position(models: Mapping[str, Any], picture: Image.Image) -> list[tuple[Any, str]]:
    """The figures of tools/analyze_position.py for one image, with their titles."""
    from lape_mm.analysis.write import analyse, write_report
    from lape_mm.runs.analysis import own_size
    from lape_mm.runs.images import load_images
    parts: dict[str, Any] = {}
    pictures: list = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'image.png')
        picture.save(path)
        for name, model in models.items():
            on_cpu = deepcopy(model.model).cpu()
            images, pictures = load_images(model.cfg, on_cpu, [path], own_size(on_cpu))
            parts[name] = analyse(on_cpu, images)
        return [(Image.open(Path(folder, row['figures'][0])).convert('RGB'),
                 f'{row["title"]}: {row["meaning"]}')
                for row in write_report(parts, pictures, Path(folder), 'lape_mm')]
