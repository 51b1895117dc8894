"""What is checked of a config and its data before a run starts; `preflight.py` calls all of it."""
