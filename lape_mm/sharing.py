"""Went after version 0.1.0: backbones save and load themselves, see `lape_mm.backbones.hub`."""


def __getattr__(name: str):
    if name in ('from_pretrained', 'save_pretrained'):
        raise ImportError(f'lape_mm.sharing.{name} is now a method of every backbone, which reads '
                          f'the same folders: lape_mm.DeiT.{name}(..)')
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
