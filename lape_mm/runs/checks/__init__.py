"""What is checked of a config and its data before a run starts; `preflight` calls all of it."""
