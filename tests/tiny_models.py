"""A tiny model of every backbone, for tests that run over all of them."""
import torch

from lape_mm import backbones

SIZES = dict(embed_dim=24, depth=3, num_heads=3)
ADAPTER = dict(embed_dim=24, depth=4, num_heads=3, conv_inplane=8, deform_num_heads=3)
SWIN = dict(embed_dim=8, depths=(2, 2), num_heads=(1, 2), window_size=4)
MODELS = {  # arguments, and a second image size
    'DeiT': (dict(arch=SIZES, img_size=32), (48, 32)),
    'DeiT distilled': (dict(arch=SIZES, img_size=32, distilled=True), (48, 32)),
    'ViTAdapter': (dict(arch=ADAPTER, img_size=32), (64, 32)),
    'Swin': (dict(arch=SWIN, img_size=32), (40, 32)),
    'CeiT': (dict(arch=SIZES, img_size=32), (48, 32)),
    'T2TViT': (dict(arch=dict(SIZES, token_dim=16), img_size=32), (48, 32)),
    'T2TViT transformer': (dict(arch=dict(SIZES, token_dim=16), img_size=32,
                                tokens='transformer'), (48, 32)),
    'ViT-Lite': (dict(arch=dict(SIZES, kernel_size=4, conv_layers=0, pool='class'),
                      img_size=16), (16, 24)),
    'CVT': (dict(arch=dict(SIZES, kernel_size=4, conv_layers=0, pool='sequence'),
                 img_size=16), (16, 24)),
    'CCT': (dict(arch=dict(SIZES, kernel_size=3, conv_layers=1, pool='sequence'),
                 img_size=8), (8, 12)),
}
COMPACT = ('ViT-Lite', 'CVT', 'CCT')


def build(name, joining, **options):
    """A model of `MODELS` whose trained parameters are all random."""
    kind = 'CompactTransformer' if name in COMPACT else name.split()[0]
    model = getattr(backbones, kind)(joining=joining, **{**MODELS[name][0], **options})
    for parameter in model.parameters():  # a zero bias or scale would hide a missing gradient
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=.1)
    return model


def side_of(name):
    """Side of the images that the model is made for."""
    return MODELS[name][0]['img_size']


def flat(outputs):
    """All tensors that a backbone returns."""
    return [part for output in outputs
            for part in (output if isinstance(output, tuple) else (output,))]


def gap(ours, theirs):
    """The largest difference, relative to the scale of ``theirs``."""
    return max(((a.float() - b.float()).abs().max() / max(b.float().abs().max(), 1.)).item()
               for a, b in zip(flat(ours), flat(theirs), strict=True))
