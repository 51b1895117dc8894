"""Exports trained models for other runtimes.

    graph      what is exported of a classifier, segmenter or detector
    detector   the heads of Mask R-CNN and Faster R-CNN in operators that ONNX has
    onnx       ONNX files, written only if onnxruntime reproduces PyTorch's outputs
    int8       quantisation of such files
"""
