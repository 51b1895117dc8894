"""The built-in data set (``scenes.py``) and folders of the user's own data (``folders.py``)."""
