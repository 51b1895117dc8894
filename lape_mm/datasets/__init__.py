"""The data set that the package draws (``scenes.py``), and users' own (``folders.py``)."""
