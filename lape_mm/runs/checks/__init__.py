"""What a run needs of its config and its data, checked before it starts.

    preflight      check_config and check_files, which call all others
    settings       names of types, of their settings, and of keys at the top
    values         what goes together, and what is out of range
    build          the parts of a run, built where that costs nothing; build_model
    channels       whether backbone, neck and heads fit together
    classes        the data sets, their classes and the heads'; coco, label_maps and class_folders
    signatures     what a constructor takes, and what a type stands for
    report         what was found
"""
