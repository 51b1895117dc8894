"""Checks of config and data before a run.

    preflight      check_config and check_files, which call all others; values
    settings       unknown types, settings and top-level keys
    build          builds the cheap parts of a run; channels runs the model on the meta device
    data_sets      paths, labels and classes of each data format
"""
