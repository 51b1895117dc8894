"""Checks of config and data before a run.

    preflight      check_config and check_files, which call all others
    settings       unknown types, settings and top-level keys; signatures says what is known
    values         ranges, and settings that depend on each other
    build          builds the cheap parts of a run; channels runs the model on the meta device
    data_sets      paths, labels and classes of each data format
"""
