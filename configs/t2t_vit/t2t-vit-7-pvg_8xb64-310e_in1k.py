_base_ = './t2t-vit-7-default_8xb64-310e_in1k.py'

model = dict(backbone=dict(joining='pvg'))
