"""What holds for every backbone with every joining that the papers use it with."""
import pytest
import torch

from lape_mm import backbones

SIZES = dict(embed_dim=24, depth=3, num_heads=3)
MODELS = {  # arguments, and a second image size
    'DeiT': (dict(arch=SIZES, img_size=32), (48, 32)),
    'DeiT distilled': (dict(arch=SIZES, img_size=32, distilled=True), (48, 32)),
    'ViTAdapter': (dict(arch=dict(embed_dim=24, depth=4, num_heads=3, conv_inplane=8,
                                  deform_num_heads=3), img_size=32), (64, 32)),
    'Swin': (dict(arch=dict(embed_dim=8, depths=(2, 2), num_heads=(1, 2), window_size=4),
                  img_size=32), (40, 32)),
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
    kind = 'CompactTransformer' if name in COMPACT else name.split()[0]
    model = getattr(backbones, kind)(joining=joining, **MODELS[name][0], **options)
    for parameter in model.parameters():  # a zero bias or scale would hide a missing gradient
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=.1)
    return model


def flat(outputs):
    return [part for output in outputs
            for part in (output if isinstance(output, tuple) else (output,))]


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16],
                         ids=['fp32', 'bf16', 'fp16'])
@pytest.mark.parametrize('joining', ['default', 'lape', 'pvg', 'mpvg'])
@pytest.mark.parametrize('name', MODELS)
def test_a_step_with_a_finite_gradient_on_every_parameter(name, joining, dtype):
    torch.manual_seed(0)
    model = build(name, joining)
    side = MODELS[name][0]['img_size']
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with torch.autocast('cpu', dtype=dtype, enabled=dtype != torch.float32):
        outputs = flat(model(torch.randn(2, 3, side, side)))
    loss = sum((output.float() * torch.randn_like(output.float())).sum() for output in outputs)
    loss.backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.isfinite().all(), parameter_name
    optimizer.step()


@pytest.mark.parametrize('name', [name for name in MODELS if name != 'Swin'])
def test_there_is_always_a_position_embedding(name):
    wrong = [None, '', 'rope', ['learnable']]
    if name == 'ViTAdapter' or name in COMPACT:
        wrong.append('relative')
    for position in wrong:
        with pytest.raises(ValueError) as error:
            build(name, 'default', position=position)
        given, allowed = str(error.value).split(': expected one of ')
        assert given == f'position={position!r}' and "'learnable'" in allowed
        assert ("'relative'" in allowed) == ('relative' not in wrong)


@torch.no_grad()
@pytest.mark.parametrize('joining', ['default', 'lape', 'pvg', 'mpvg'])
@pytest.mark.parametrize('name', MODELS)
def test_another_image_size(name, joining):
    model = build(name, joining).eval()
    for height, width in ((MODELS[name][0]['img_size'],) * 2, MODELS[name][1]):
        assert all(output.isfinite().all()
                   for output in flat(model(torch.randn(2, 3, height, width))))


@pytest.mark.parametrize('name', [name for name in MODELS if name != 'ViTAdapter'])
def test_position_reaches_the_output_in_every_joining(name):
    torch.manual_seed(0)
    side = MODELS[name][0]['img_size']
    image = torch.randn(1, 3, side, side)
    for joining in ('default', 'lape', 'pvg', 'mpvg'):
        model = build(name, joining).eval()
        with torch.no_grad():
            before = flat(model(image))[0].clone()
            model.pos_embed.add_(torch.randn_like(model.pos_embed))
            assert not torch.allclose(before, flat(model(image))[0]), joining


@torch.no_grad()
@pytest.mark.parametrize('joining', ['default', 'mpvg'])
@pytest.mark.parametrize('name', MODELS)
def test_what_a_hook_sees_is_not_changed_afterwards(name, joining):
    torch.manual_seed(0)
    model = build(name, joining).eval()
    for module in model.modules():
        if hasattr(module, 'inplace'):  # torch's own ReLU, which does that to anybody
            module.inplace = False
    seen = []

    def look(module, given, output):
        outputs = output if isinstance(output, (tuple, list)) else [output]
        seen.extend((type(module).__name__, entry, entry.clone()) for entry in outputs
                    if isinstance(entry, torch.Tensor))
    handle = torch.nn.modules.module.register_module_forward_hook(look)
    try:
        model(torch.randn(1, 3, *MODELS[name][1]))
    finally:
        handle.remove()
    assert len(seen) > 20
    assert not [part for part, entry, copy in seen if not entry.equal(copy)]
