"""Exports trained models for other runtimes.

    detector   the heads of Mask R-CNN and Faster R-CNN in operators that ONNX has
    onnx       ONNX files, written only if onnxruntime reproduces PyTorch's outputs
"""
