"""Checks an installation, and names the command that repairs what is broken.

    python -m lape_mm.doctor [CONFIG]

Every import happens inside a check, since it may fail. Whatever depends on a broken module is not
tried, so each cause is named once. The exit status is 1 if something is broken.
"""
