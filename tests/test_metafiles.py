"""What `mim search` reads: every full-scale config once, and quoted numbers marked as such."""
from pathlib import Path

import pytest
from test_parameters import COUNTS

yaml = pytest.importorskip('yaml')

ROOT = Path(__file__).parents[1]
CONFIGS = sorted(path for path in (ROOT / 'configs').glob('[!_]*/*.py')
                 if path.parent.name not in ('quickstart', 'studies'))
INDEX = yaml.safe_load((ROOT / 'model-index.yml').read_text())
FILES = {path: yaml.safe_load((ROOT / path).read_text()) for path in INDEX['Import']}
MODELS = {model['Name']: (path, model) for path, file in FILES.items() for model in file['Models']}


def test_every_full_scale_config_is_listed_once():
    assert sorted(MODELS) == sorted(path.stem for path in CONFIGS)
    assert sum(len(file['Models']) for file in FILES.values()) == len(CONFIGS) > 100
    for path, model in MODELS.values():
        assert (ROOT / model['Config']).stem == model['Name']
        assert Path(model['Config']).parent == Path(path).parent
        assert model['In Collection'] == FILES[path]['Collections'][0]['Name']


def test_numbers_are_quoted_and_weights_not_invented():
    for name, (_, model) in MODELS.items():
        assert 'Weights' not in model, name
        # mim's search fails for a model without results
        assert model['Results'] and all('Metrics' in result for result in model['Results']), name
        metrics = [key for result in model['Results'] for key in result['Metrics']]
        assert all(key.endswith(' (paper)') for key in metrics), name
        assert bool(metrics) == ('Source of Results' in model['Metadata']), name


def test_parameters_are_those_of_the_paper_table():
    for joining, count in zip(('default', 'lape', 'pvg', 'mpvg'), COUNTS[1, 'DeiT-Ti']):
        model = MODELS[f'deit-tiny-{joining}_4xb256-300e_in1k'][1]
        assert model['Metadata']['Parameters'] == count


def test_batch_sizes_are_those_of_the_configs():
    config = pytest.importorskip('mmengine.config')
    for path, file in FILES.items():
        model = file['Models'][-1]
        cfg = config.Config.fromfile(ROOT / model['Config'])
        assert model['Metadata']['Batch Size'] == cfg.auto_scale_lr.base_batch_size, path


def test_the_index_is_valid_for_mim():
    modelindex = pytest.importorskip('modelindex', reason="mim's parser is not installed")
    index = modelindex.load(str(ROOT / 'model-index.yml'))
    assert index.check(silent=True) == []
    assert {model.name for model in index.models} == set(MODELS)
