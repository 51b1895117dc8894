_base_ = './deit-distilled-base-default_4xb256-300e_in1k.py'

model = dict(backbone=dict(joining='lape'))
