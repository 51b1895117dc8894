"""The built-in data set (``scenes.py``), and users' own (``folders.py``)."""
