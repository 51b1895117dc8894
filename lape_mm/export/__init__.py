"""Exports trained models for other runtimes."""
