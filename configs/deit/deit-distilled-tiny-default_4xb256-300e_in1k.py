# DeiT-Ti with a distillation token and DeiT's teacher, RegNetY-16GF (hard distillation).
#
# The teacher's weights are timm's, fetched when the run starts; without a network give a file by
#   --cfg-options model.teacher.pretrained=False model.teacher.checkpoint_path=FILE
# or leave the teacher out by model.teacher=None: both classifiers then learn the labels.
_base_ = './deit-tiny-default_4xb256-300e_in1k.py'

model = dict(
    type='lape_mm.DistilledClassifier',
    teacher=dict(type='TimmClassifier', model_name='regnety_160', pretrained=True),
    backbone=dict(distilled=True),
    head=dict(type='lape_mm.DistilledClsHead'))
