import pytest
import torch
import torch.nn.functional as F

pytest.importorskip('mmpretrain')
from mmengine.registry import init_default_scope  # noqa: E402
from mmpretrain.structures import DataSample  # noqa: E402

from lape_mm.registry import MODELS  # noqa: E402


class Teacher(torch.nn.Module):
    """Predicts class 2 for every image."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.modes = []

    def forward(self, inputs):
        self.modes.append((self.training, torch.is_grad_enabled()))
        return F.one_hot(torch.full((len(inputs),), 2), 5).float()


def build(joining='default', **options):
    init_default_scope('mmpretrain')  # whatever ran before
    return MODELS.build(dict(
        type='lape_mm.DistilledClassifier', **options,
        backbone=dict(type='lape_mm.DeiT', distilled=True, joining=joining, img_size=32,
                      arch=dict(embed_dim=24, depth=2, num_heads=3)),
        head=dict(type='lape_mm.DistilledClsHead', num_classes=5, in_channels=24,
                  init_cfg=dict(type='TruncNormal', layer='Linear', std=.02),
                  loss=dict(type='CrossEntropyLoss'))))


def samples(*labels):
    return [DataSample().set_gt_label(label) for label in labels]


def test_the_token_learns_the_teacher_and_the_pooled_vector_the_labels():
    torch.manual_seed(0)
    teacher = Teacher()
    model = build(teacher=teacher)
    image = torch.randn(2, 3, 32, 32)
    losses = model.loss(image, samples(0, 1))
    (pooled, token), = model.backbone(image)
    head, head_dist = model.head.layers.head, model.head.layers.head_dist
    expected = .5 * F.cross_entropy(head(pooled), torch.tensor([0, 1]))
    torch.testing.assert_close(losses['loss_labels'], expected)
    expected = .5 * F.cross_entropy(head_dist(token), torch.tensor([2, 2]))
    torch.testing.assert_close(losses['loss_teacher'], expected)
    assert teacher.modes == [(False, False)]
    assert not any('teacher' in key for key in model.state_dict())
    assert not any(parameter is teacher.linear.weight for parameter in model.parameters())
    assert not (model.train() and teacher.training)


@pytest.mark.parametrize('joining', ['default', 'lape', 'pvg', 'mpvg'])
def test_every_parameter_gets_a_gradient_without_a_teacher(joining):
    model = build(joining)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=.1)
    sum(model.loss(torch.randn(2, 3, 32, 32), samples(0, 1)).values()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_prediction_is_the_mean_of_both():
    model = build().eval()
    image = torch.randn(1, 3, 32, 32)
    (pooled, token), = model.backbone(image)
    expected = (model.head.layers.head(pooled) + model.head.layers.head_dist(token)) / 2
    torch.testing.assert_close(model.head(model.extract_feat(image)), expected)


def test_errors():
    with pytest.raises(ValueError, match='LinearClsHead'):
        MODELS.build(dict(
            type='lape_mm.DistilledClassifier',
            backbone=dict(type='lape_mm.DeiT', distilled=True, arch='tiny'),
            head=dict(type='LinearClsHead', num_classes=5, in_channels=192)))


PLAIN = dict(type='ImageClassifier', backbone=dict(type='lape_mm.DeiT', img_size=32,
                                                   arch=dict(embed_dim=24, depth=1, num_heads=3)),
             head=dict(type='LinearClsHead', num_classes=5, in_channels=24))


TIMM = dict(type='TimmClassifier', model_name='deit_tiny_patch16_224', img_size=32, embed_dim=24,
            depth=1, num_heads=3, num_classes=5)


def pretrained(path):
    return dict(type='Pretrained', checkpoint=path)


@pytest.mark.parametrize('settings', [
    lambda path: dict(PLAIN, pretrained=path),
    lambda path: dict(PLAIN, init_cfg=pretrained(path)),
    lambda path: dict(PLAIN, init_cfg=[pretrained(path)]),
    lambda path: dict(TIMM, checkpoint_path=path),
    lambda path: dict(TIMM, init_cfg=pretrained(path))])
def test_a_teacher_has_its_weights(settings, tmp_path, forgetful):
    torch.manual_seed(0)
    given = settings(str(tmp_path / 'teacher.pth'))
    init_default_scope('mmpretrain')
    theirs = MODELS.build(TIMM if given['type'] == 'TimmClassifier' else PLAIN)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    torch.save(getattr(theirs, 'model', theirs).state_dict(), tmp_path / 'teacher.pth')
    model, image = build(teacher=given), torch.randn(8, 3, 32, 32)
    model.init_weights()
    (_, token), = model.backbone(image)
    expected = F.cross_entropy(model.head.layers.head_dist(token), theirs.eval()(image).argmax(1))
    torch.testing.assert_close(model.loss(image, samples(*[0] * 8))['loss_teacher'], expected / 2)


def test_a_teacher_without_weights_is_refused_before_training(forgetful):
    whole = pretrained('some.pth')
    for teacher in (PLAIN, dict(PLAIN, pretrained=None), dict(PLAIN, init_cfg=dict(type='Normal')),
                    dict(PLAIN, backbone=dict(PLAIN['backbone'], init_cfg=whole)),
                    dict(type='TimmClassifier', model_name='resnet18'),
                    dict(type='TimmClassifier', model_name='resnet18', pretrained=False)):
        with pytest.raises(ValueError, match=f"{teacher['type']}.*no weights.*pretrained"):
            build(teacher=teacher).init_weights()
    build(teacher=dict(PLAIN, init_cfg=whole)).init_weights()  # not built before it is asked
    build(teacher=Teacher()).init_weights()
    build().init_weights()
