"""Checks of config and data before a run.

    preflight      check_config and check_files, which call all others
    settings       names of types, settings and top-level keys
    values         ranges, and settings that depend on each other
    build          builds the cheap parts of a run; build_model
    channels       whether backbone, neck and heads fit together
    classes        data sets, their classes and the heads'; coco, label_maps and class_folders
    signatures     what a constructor takes, and what a type names
    report         the problems
"""
