"""What tools/train.py and tools/test.py do, for mmpretrain, mmdet and mmseg alike.

    arguments   the options that both tools share
    config      a config file and the edits that options stand for
    preflight   what a run needs, checked before any model is built
    session     training and testing, from the config to the closing lines
"""
