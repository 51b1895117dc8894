# DeiT-Ti with a distillation token and DeiT's teacher, RegNetY-16GF (hard distillation).
#
# timm downloads the teacher's weights when the run starts. Without a network, give a file:
#   --cfg-options model.teacher.pretrained=False model.teacher.checkpoint_path=FILE
# or set model.teacher=None to train without a teacher: both classifiers then learn the labels.
_base_ = './deit-tiny-default_4xb256-300e_in1k.py'

model = dict(
    type='lape_mm.DistilledClassifier',
    teacher=dict(type='TimmClassifier', model_name='regnety_160', pretrained=True),
    backbone=dict(distilled=True),
    head=dict(type='lape_mm.DistilledClsHead'))
