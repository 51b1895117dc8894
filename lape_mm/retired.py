"""Config types of version 0.1.0 that were removed, and what to do instead."""
RETIRED = {
    'lape_mm.DeviceTrainLoop': "write by_epoch=True in place of 'type' and 'compile'",
    'lape_mm.FoldHook': 'delete this hook; the metrics are the same without it',
    'lape_mm.folded_backbone':
        'tools/deploy.py wrote this config; use the config and the checkpoint that it was made '
        'from. lape_mm.fold(model, img_size) folds a model in Python, tools/export_onnx.py into an '
        'ONNX file',
}
