"""Trained models on images: predictions of files (`predict`) and a page to try them (`page`)."""
