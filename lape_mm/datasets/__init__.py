"""The built-in data set: scenes of plain shapes that the package draws itself (``scenes.py``)."""
