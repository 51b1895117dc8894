"""What the tools do, for mmpretrain, mmdet and mmseg alike.

    arguments   the options that several tools share
    config      a config file and the edits that options stand for
    backbone    --backbone: another backbone in a config, and what follows; probe runs the parts
    checks      what a run needs of its config and its data, looked at before it starts
    session     training and testing, from the config to the closing lines
"""
