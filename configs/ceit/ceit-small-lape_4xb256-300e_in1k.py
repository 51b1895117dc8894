_base_ = './ceit-small-default_4xb256-300e_in1k.py'

model = dict(backbone=dict(joining='lape'))
