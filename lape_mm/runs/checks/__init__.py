"""Checks of config and data before a run.

    preflight      check_config and check_files, which call all others
    settings       names of types, settings and top-level keys, by signatures
    values         ranges, and settings that depend on each other
    build          the parts of a run that cost nothing; channels runs the model without values
    data_sets      paths, labels and classes of each data format
"""
