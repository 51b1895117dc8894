"""Checks of config and data before a run; `preflight` calls all others."""
