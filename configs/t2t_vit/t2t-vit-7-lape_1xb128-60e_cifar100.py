_base_ = './t2t-vit-7-default_1xb128-60e_cifar100.py'

model = dict(backbone=dict(joining='lape'))
