"""What the tools do, for mmpretrain, mmdet and mmseg alike.

    arguments   the options that several tools share
    config      reads a config file and applies options to it
    backbone    --backbone: puts another backbone into a config; probe runs its parts
    checks      checks of config and data before a run starts
    session     training and testing, from the config to the closing lines
"""
