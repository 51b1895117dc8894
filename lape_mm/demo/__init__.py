"""Runs trained models on image and video files (`predict`) or on a web page (`page`)."""
