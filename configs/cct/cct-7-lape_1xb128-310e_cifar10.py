_base_ = './cct-7-default_1xb128-310e_cifar10.py'

model = dict(backbone=dict(joining='lape'))
