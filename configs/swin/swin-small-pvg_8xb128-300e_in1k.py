_base_ = './swin-small-default_8xb128-300e_in1k.py'

model = dict(backbone=dict(joining='pvg'))
