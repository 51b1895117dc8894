"""Exports trained models for other runtimes.

    graph   the part of a classifier, segmenter or detector that is exported
    onnx    ONNX files, written only if onnxruntime reproduces PyTorch's outputs
"""
