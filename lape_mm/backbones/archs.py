"""The plain ViT's architectures by name, and where to find their published weights.

A name sets the architecture (`Arch.settings`), as a dict can, and the defaults of the backbone's
other arguments. It downloads nothing.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .checks import resolve_arch

IMAGENET = (.485, .456, .406), (.229, .224, .225)
HALF = (.5, .5, .5), (.5, .5, .5)
CLIP = (.48145466, .4578275, .40821073), (.26862954, .26130258, .27577711)

SIZES: dict[str, dict] = {
    'tiny': dict(embed_dim=192, depth=12, num_heads=3),
    'small': dict(embed_dim=384, depth=12, num_heads=6),
    'base': dict(embed_dim=768, depth=12, num_heads=12),
    'large': dict(embed_dim=1024, depth=24, num_heads=16),
    'huge': dict(embed_dim=1280, depth=32, num_heads=16),
}
# optional settings of a dict, see `DeiT`
DETAILS: dict[str, Any] = dict(
    mlp_ratio=4., qkv_bias=True, mlp='mlp', qk_norm=False, layer_scale=0., reg_tokens=0,
    norm_pre=False, class_token=True, embed_class=True, global_pool='token', fc_norm=False)
CHOICES = dict(qkv_bias=(True, False, 'qv'),
               mlp=('mlp', 'swiglu', 'swiglu_split', 'swiglu_norm'),
               global_pool=('token', 'avg'))
# the defaults of the backbones' other arguments, where these are None
DEFAULTS: dict[str, Any] = dict(patch_size=16, img_size=224, position='learnable',
                                interpolation='bicubic', norm_eps=1e-6)


@dataclass(frozen=True)
class Arch:
    """A named architecture, and where its weights are."""

    settings: Mapping  # sizes and structure, as in a dict for ``arch``
    defaults: Mapping = field(default_factory=dict)  # values that differ from `DEFAULTS`
    timm: str = ''  # NAME.TAG of the weights in timm, on the Hub in timm/NAME.TAG
    files: tuple[str, ...] = ()  # names of the official files
    hub: str = ''  # repository on the Hugging Face Hub, in transformers' format
    license: str = 'Apache-2.0'
    # mean and standard deviation of the channels, for pixel values of 0..1
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] = IMAGENET


def published() -> Iterator[tuple[str, Arch]]:
    """Yields the name and the architecture of each set of published weights."""
    exact = dict(interpolation='bicubic_antialias')  # as timm resizes
    for size, short in dict(tiny='Ti', small='S', base='B', large='L').items():
        yield f'augreg_{size}', Arch(
            SIZES[size], exact, f'vit_{size}_patch16_224.augreg_in21k',
            (f'{short}_16-i21k-300ep-*.npz',), normalisation=HALF)
    for size in ('small', 'base', 'large', 'huge'):
        patch = 14 if size == 'huge' else 16
        yield f'deit3_{size}', Arch(
            dict(SIZES[size], layer_scale=1e-6, embed_class=False), dict(exact, patch_size=patch),
            f'deit3_{size}_patch{patch}_224.fb_in22k_ft_in1k',
            (f'deit_3_{size}_224_21k.pth', f'deit_3_{size}_224_1k.pth'))
    for size in ('base', 'large', 'huge'):
        patch = 14 if size == 'huge' else 16
        yield f'mae_{size}', Arch(
            SIZES[size], dict(exact, patch_size=patch), f'vit_{size}_patch{patch}_224.mae',
            (f'mae_pretrain_vit_{size}.pth',), f'facebook/vit-mae-{size}', 'CC-BY-NC-4.0')

    giant = dict(embed_dim=1536, depth=40, num_heads=24, mlp='swiglu', mlp_ratio=2.66667)
    for size, sizes in {**SIZES, 'giant': giant}.items():
        if size in ('tiny', 'huge'):
            continue
        for registers in (0, 4):
            reg = f'_reg{registers}' if registers else ''
            letter = size[0]
            yield f'dinov2_{size}{reg[:4]}', Arch(
                dict(sizes, layer_scale=1e-5, **dict(reg_tokens=registers) if registers else {}),
                dict(exact, patch_size=14, img_size=518),
                f'vit_{size}_patch14{reg}_dinov2.lvd142m',
                (f'dinov2_vit{letter}14{reg}_pretrain.pth',),
                f'facebook/dinov2{"-with-registers" if registers else ""}-{size}')
    plus = dict(mlp='swiglu_split')
    for size, sizes, short in (
            ('small', SIZES['small'], 's'),
            ('small_plus', dict(SIZES['small'], mlp_ratio=4., **plus), 'splus'),
            ('base', SIZES['base'], 'b'), ('large', SIZES['large'], 'l'),
            ('huge_plus', dict(SIZES['huge'], num_heads=20, mlp_ratio=4., **plus), 'hplus')):
        yield f'dinov3_{size}', Arch(
            dict(sizes, layer_scale=1e-5, reg_tokens=4, qkv_bias='qv'),
            dict(exact, img_size=256, position='rope_dinov3', norm_eps=1e-5),
            f'vit_{size}_patch16_dinov3.lvd1689m',
            (f'dinov3_vit{short}16_pretrain_lvd1689m-*.pth',),
            f'facebook/dinov3-vit{short}16-pretrain-lvd1689m', 'dinov3-license')

    for size, short, data in (('tiny', 'Ti', 'in21k'), ('small', 'S', 'in21k'),
                              ('base', 'B', 'in21k'), ('large', 'L', 'm38m')):
        yield f'eva02_{size}', Arch(
            dict(SIZES[size], mlp_ratio=4 * 2 / 3, qkv_bias='qv', global_pool='avg', fc_norm=True,
                 mlp='swiglu' if size in ('tiny', 'small') else 'swiglu_norm'),
            dict(exact, patch_size=14, position='learnable+rope_eva02'),
            f'eva02_{size}_patch14_224.mim_{data.replace("21", "22")}',
            (f'eva02_{short}_pt_{data}_p14.pt',), license='MIT', normalisation=CLIP)
    for form in ('', '_mixed', '_ape', '_mixed_ape'):
        rope = 'rope_mixed' if 'mixed' in form else 'rope'
        for size in ('small', 'base', 'large'):
            yield f'rope{form}_{size}', Arch(
                dict(SIZES[size], layer_scale=1e-5, embed_class=False),
                dict(exact, position=f'learnable+{rope}' if 'ape' in form else rope),
                f'vit_{size}_patch16_rope{form}_224.naver_in1k',
                (f'rope{"" if "mixed" in form else "_axial"}{form}_deit_{size}_patch16_LS.pth',))
    for size, dim, registers in (('medium', 512, 1), ('betwixt', 640, 4), ('base', 768, 1)):
        yield f'rope_gap_{size}', Arch(
            dict(embed_dim=dim, depth=12, num_heads=dim // 64, layer_scale=1e-5, qkv_bias='qv',
                 reg_tokens=registers, class_token=False, global_pool='avg', fc_norm=True),
            dict(exact, img_size=256, position='rope_eva02'),
            f'vit_{size}_patch16_rope_reg{registers}_gap_256.sbb_in1k', license='MIT',
            normalisation=CLIP if size == 'betwixt' else HALF)
    for size, patch in (('base', 16), ('large', 14)):
        yield f'clip_{size}', Arch(
            dict(SIZES[size], norm_pre=True), dict(exact, patch_size=patch, norm_eps=1e-5),
            f'vit_{size}_patch{patch}_clip_224.laion2b',
            normalisation=CLIP if size == 'base' else HALF)


ARCHS: dict[str, Arch] = {**{name: Arch(sizes) for name, sizes in SIZES.items()},
                          **dict(published())}


def resolve_vit(arch: str | Mapping, more: Mapping | None = None, **given) -> tuple[dict, dict]:
    """Returns an architecture's settings, and values of the arguments that `DEFAULTS` lists.

    ``arch`` is a key of `ARCHS`, or a dict, which may also have the settings of ``more``. Arguments
    in ``given`` that are None take the architecture's default.
    """
    sizes = resolve_arch(arch, {name: entry.settings for name, entry in ARCHS.items()},
                         {**DETAILS, **(more or {})})
    for name, allowed in CHOICES.items():
        if sizes[name] not in allowed:
            raise ValueError(f'arch.{name}={sizes[name]!r}: expected one of {allowed}')
    if not sizes['class_token'] and sizes['global_pool'] == 'token':
        sizes['global_pool'] = 'avg'
    defaults = ARCHS[arch].defaults if isinstance(arch, str) else {}
    return sizes, {**DEFAULTS, **defaults,
                   **{name: value for name, value in given.items() if value is not None}}
