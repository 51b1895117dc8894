import os

import pytest
import sweep
import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper

from lape_mm.__main__ import main
from lape_mm.runs.checks.build import build_model
from lape_mm.runs.config import load_config, lookup
from lape_mm.runs.engine import CpuDataParallel
from lape_mm.runs.errors import RunError

RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
PSPNET = 'mmseg::pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py'
# structure: config, levels, and some settings that follow
STRUCTURES = {
    'neck, lowest level unread': (RETINANET, (1, 1, 2, 3), {'neck.in_channels': [192] * 4}),
    'neck, three maps': ('mmdet::yolo/yolov3_d53_8xb8-320-273e_coco.py', (1, 2, 3), {
        'neck.in_channels': [192] * 3, 'neck.out_channels': [512, 256, 128]}),
    'neck that hands maps on': ('mmdet::ssd/ssd300_coco.py', (1, 2), {
        'neck.out_channels': (192, 192, 512, 256, 256, 256),
        'bbox_head.in_channels': (192, 192, 512, 256, 256, 256)}),
    'one map': ('mmdet::detr/detr_r50_8xb2-150e_coco.py', (3,), {'neck.in_channels': [192]}),
    'dilated stage': ('mmdet::faster_rcnn/faster-rcnn_r50-caffe-dc5_1x_coco.py', (2,), {
        'rpn_head.in_channels': 192, 'roi_head.bbox_roi_extractor.out_channels': 192,
        'roi_head.bbox_head.in_channels': 192}),
    'equal maps': ('mmdet::cornernet/cornernet_hourglass104_8xb6-210e-mstest_coco.py', (0, 0), {
        'bbox_head.in_channels': 192}),
    'nested detector': ('mmdet::soft_teacher/soft-teacher_faster-rcnn_r50-caffe_fpn_180k_semi-0.1-'
                        'coco.py', (0, 1, 2, 3), {'neck.in_channels': [192] * 4}),
    'dilated': (PSPNET, (1, 1, 1, 1), {
        'decode_head.in_channels': 192, 'auxiliary_head.in_channels': 192}),
    'dilated, and a low level': (
        'mmseg::deeplabv3plus/deeplabv3plus_r50-d8_4xb4-80k_ade20k-512x512.py', (0, 1, 1, 1), {
            'decode_head.c1_in_channels': 192}),
    'pyramid': ('mmseg::mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py', (0, 1, 2, 3), {
        'decode_head.in_channels': [192] * 4, 'backbone.variant': 'segmentation'}),
    'pyramid of a plain ViT': ('mmseg::beit/beit-base_upernet_8xb2-160k_ade20k-640x640.py',
                               (0, 1, 2, 3), {'neck': None}),
    'neck with raw maps': ('mmseg::fastfcn/fastfcn_r50-d32_jpu_enc_4xb4-80k_ade20k-512x512.py',
                           (1, 2, 3), {'neck.in_channels': (192,) * 3,
                                       'decode_head.in_channels': [192, 192, 2048]}),
    'nested heads': ('mmseg::knet/knet-s3_r50-d8_fcn_8xb2-adamw-80k_ade20k-512x512.py',
                     (1, 1, 1, 1), {'decode_head.kernel_generate_head.in_channels': 192,
                                    'decode_head.kernel_update_head.0.in_channels': 512}),
    'head without convolutions': ('mmseg::segmenter/segmenter_vit-s_fcn_8xb1-160k_ade20k-512x512'
                                  '.py', (2,), {'decode_head.channels': 192}),
}


@pytest.mark.parametrize('structure', STRUCTURES)
def test_levels_and_channels_of_each_structure(structure):
    name, levels, expected = STRUCTURES[structure]
    cfg = load_config(name, backbone='vit_adapter_tiny')
    model = cfg.model if 'backbone' in cfg.model else cfg.model.detector
    assert model.backbone.out_indices == levels
    assert {key: lookup(model, key) for key in expected} == expected
    assert not [key for key in ('init_cfg', 'frozen_stages') if key in model.backbone]
    assert 'pretrained' not in cfg.model and not cfg.get('load_from')


def test_changes_are_printed_and_options_win(capsys):
    cfg = load_config(PSPNET, backbone='vit_adapter_tiny', joining='mpvg', options={
        'optim_wrapper.optimizer.lr': 3e-4, 'model.decode_head.num_classes': 7})
    lines = capsys.readouterr().out.splitlines()
    assert 'model.decode_head.in_channels: 2048 -> 192' in lines
    assert 'model.decode_head.num_classes: 150 -> 7' in lines
    assert any(line.startswith("model.pretrained: 'open-mmlab://resnet50_v1c' -> ")
               for line in lines)
    assert cfg.optim_wrapper.optimizer.lr == 3e-4 and cfg.model.backbone.joining == 'mpvg'
    assert cfg.optim_wrapper.constructor == 'lape_mm.LayerDecayOptimWrapperConstructor'
    assert cfg.param_scheduler[0].eta_min == pytest.approx(1e-4 * 12e-5 / .01)


def test_an_arch_alone_is_a_vit_adapter():
    short, whole = (load_config(RETINANET, backbone=name)
                    for name in ('dinov2_small', 'vit_adapter_dinov2_small'))
    assert short.model == whole.model and short.model.neck.in_channels == [384] * 4
    assert short.model.data_preprocessor.mean == [123.675, 116.28, 103.53]
    half = load_config(RETINANET, backbone='augreg_tiny').model.data_preprocessor
    assert half.mean == half.std == [127.5] * 3  # as its weights
    named = load_config('mmpretrain::resnet/resnet50_8xb32_in1k.py', backbone='deit3_small')
    assert named.model.backbone.type == 'lape_mm.DeiT'


def test_an_adamw_and_the_clipping_of_a_config_stay():
    cfg = load_config('mmdet::detr/detr_r50_8xb2-150e_coco.py', backbone='vit_adapter_tiny')
    wrapper = cfg.optim_wrapper
    assert wrapper.optimizer == dict(type='AdamW', lr=1e-4, weight_decay=1e-4)
    assert wrapper.clip_grad == dict(max_norm=.1, norm_type=2)
    assert wrapper.paramwise_cfg == dict(layer_decay_rate=.95)
    assert cfg.model.data_preprocessor.pad_size_divisor == 32


@pytest.mark.parametrize('name, backbone, text', [
    ('mmdet::detectors/htc_r50-rfp_1x_coco.py', 'vit_adapter_tiny', 'model.neck.rfp_backbone'),
    ('mmdet::faster_rcnn/faster-rcnn_r50-caffe_c4-1x_coco.py', 'vit_adapter_tiny',
     'model.roi_head.shared_head'),
    ('mmseg::san/san-vit-b16_voc12aug-640x640.py', 'vit_adapter_tiny', 'MultimodalEncoderDecoder'),
    ('mmseg::ddrnet/ddrnet_23-slim_in1k-pre_2xb6-120k_cityscapes-1024x1024.py',
     'vit_adapter_tiny', 'DDRNet, gives other maps in training'),
    ('mmseg::dpt/dpt_vit-b16_8xb2-160k_ade20k-512x512.py', 'vit_adapter_tiny', 'other than maps'),
    (RETINANET, 'deit_tiny', 'DeiT only has 16: use vit_adapter_tiny'),
    (RETINANET, 'vit_adapter_vast', "arch='vast': expected one of"),
    (RETINANET, 'resnet_50', 'vit_adapter_ARCH, deit_ARCH, swin_ARCH'),
    ('mmpretrain::resnet/resnet50_8xb32_in1k.py', 'vit_adapter_tiny', 'use deit_tiny'),
    ('mmdet::no/such.py', 'vit_adapter_tiny', 'there is no config'),
    ('mmfoo::no/such.py', 'vit_adapter_tiny', 'mmseg::'),
])
def test_refusals_name_the_part_in_one_line(name, backbone, text):
    with pytest.raises(RunError) as refused:
        load_config(name, backbone=backbone)
    assert len(refused.value.problems) == 1 and text in str(refused.value)
    assert '\n' not in str(refused.value)


def test_classifiers_take_a_vector():
    cfg = load_config('mmpretrain::resnet/resnet50_8xb32_in1k.py', backbone='deit_tiny')
    model = build_model(cfg).eval()
    assert cfg.model.get('neck') is None and cfg.data_preprocessor.to_rgb
    assert model(torch.rand(2, 3, 64, 64), mode='tensor').shape == (2, 1000)


def test_swin_and_deit_take_maps():
    swin = load_config(RETINANET, backbone='swin_tiny')
    assert swin.model.neck.in_channels == [96, 192, 384, 768] and swin.find_unused_parameters
    deit = load_config(PSPNET, backbone='deit_tiny')
    assert deit.model.backbone.out_indices == (2, 5, 8, 11)


def test_a_written_config_needs_no_base(tmp_path, capsys):
    path = tmp_path / 'my.py'
    assert main(['train', PSPNET, '--backbone', 'vit_adapter_tiny', '--write', str(path)]) == 0
    cfg = Config.fromfile(path)
    assert '_base_' not in path.read_text() and 'work_dir' not in cfg
    assert cfg.custom_imports == dict(imports=['lape_mm'])
    assert cfg.model == load_config(PSPNET, backbone='vit_adapter_tiny').model
    assert main(['train', PSPNET, '--write', str(path)]) == 2  # it exists
    assert 'error: --write' in capsys.readouterr().err


def test_a_step_of_training_and_validation():
    assert sweep.try_config(PSPNET, 'vit_adapter_tiny', 96) == ''


@pytest.mark.long
@pytest.mark.parametrize('structure', [
    # SSD predicts nothing in onedl-mmdetection 3.5.1: its head lacks loss_cls
    name for name in STRUCTURES if 'dilated' not in name and 'hands maps on' not in name])
def test_steps_of_each_structure(structure):
    size = sweep.SIZES[STRUCTURES[structure][0].split('::')[0]][1]
    # every parameter of the backbone gets a gradient
    assert sweep.try_config(STRUCTURES[structure][0], 'vit_adapter_tiny', size) == ''


def step(rank, port, names):
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo', rank=rank, world_size=2)
    for name in names:
        cfg = load_config(name, backbone='vit_adapter_tiny')
        model = CpuDataParallel(revert_sync_batchnorm(build_model(cfg)), broadcast_buffers=False)
        optimizer = build_optim_wrapper(model.module, dict(cfg.optim_wrapper))
        for _ in range(2):  # the second finds parameters without a gradient in the first
            model.train_step(sweep.images(cfg, sweep.SIZES[cfg.default_scope][1]), optimizer)
    torch.distributed.destroy_process_group()


@pytest.mark.long
def test_distributed_steps_find_no_unused_parameter():
    names = [STRUCTURES[name][0] for name in (
        'neck, lowest level unread', 'neck, three maps', 'one map', 'dilated')]
    torch.multiprocessing.spawn(step, (29511, names), nprocs=2)
