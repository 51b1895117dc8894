"""Trained models as files for other runtimes.

    graph   what of a classifier, segmenter or detector goes into a file
    onnx    the file, written only where onnxruntime gives what PyTorch gives
"""
