import os
import pickle
import random
from argparse import Namespace
from types import SimpleNamespace

import pytest

pytest.importorskip('mmengine')

import numpy as np  # noqa: E402
import torch  # noqa: E402

from lape_mm.checkpoints import (  # noqa: E402
    CheckpointError,
    files,
    install_safe_loader,
    read_checkpoint,
    trust_checkpoints,
)
from lape_mm.checkpoints import loader as loader_module  # noqa: E402


class Code:
    """Unpickled carelessly, it leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def refuse(path, *words):
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    message = str(error.value)
    assert message.startswith(str(path)) and '\n' not in message
    assert all(word in message for word in words), message


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip('safetensors.torch', reason='safetensors is not installed')
    safetensors.save_file({'a': torch.ones(2)}, tmp_path / 'a.safetensors')
    assert torch.equal(read_checkpoint(tmp_path / 'a.safetensors')['a'], torch.ones(2))
    (tmp_path / 'b.safetensors').write_bytes(b'nothing')
    refuse(tmp_path / 'b.safetensors')


def test_a_truncated_file_is_one_clear_error(tmp_path):
    torch.save({'a': torch.randn(1000)}, tmp_path / 'whole.pth')
    content = (tmp_path / 'whole.pth').read_bytes()
    for share in (0, .01, .5, .9, .99):
        (tmp_path / 'cut.pth').write_bytes(content[:int(share * len(content))])
        refuse(tmp_path / 'cut.pth')


def test_other_files(tmp_path):
    refuse(tmp_path / 'nowhere.pth', 'no such file')
    refuse(tmp_path, 'not a regular file')
    os.mkfifo(tmp_path / 'pipe.pth')  # to open it would wait for ever
    refuse(tmp_path / 'pipe.pth', 'not a regular file')
    os.symlink('/dev/zero', tmp_path / 'endless.pth')
    refuse(tmp_path / 'endless.pth', 'not a regular file')
    (tmp_path / 'text.pth').write_text('<html>404</html>')
    refuse(tmp_path / 'text.pth', 'not a checkpoint: begins with', '<html>')
    (tmp_path / 'nothing.pth').touch()
    refuse(tmp_path / 'nothing.pth', 'is empty')
    torch.jit.save(torch.jit.script(torch.nn.Identity()), tmp_path / 'script.pth')
    refuse(tmp_path / 'script.pth', 'TorchScript')
    torch.save([torch.ones(1)], tmp_path / 'list.pth')
    refuse(tmp_path / 'list.pth', 'list')


def test_downloads_of_one_name_stay_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    calls = []

    def download(address, target):
        calls.append(address)
        torch.save({'from': address}, target)
    monkeypatch.setattr(torch.hub, 'download_url_to_file', download)
    addresses = [f'https://example.org/{name}/model.pth' for name in 'ab']
    for address in addresses * 2:
        assert read_checkpoint(address) == {'from': address}
    assert calls == addresses


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    torch.save({'a': torch.ones(1)}, tmp_path / 'a.pth')
    assert read_checkpoint('~/a.pth')['a'] == 1


def test_what_mmengine_writes_is_read(tmp_path):
    from mmengine.logging import MessageHub
    hub = MessageHub.get_instance('test_files')
    hub.update_scalar('train/loss', 1.5)
    hub.update_scalar('train/loss', torch.tensor(.5))
    hub.update_info('best', np.float64(.25))
    torch.save({'state_dict': {}, 'message_hub': hub.state_dict()}, tmp_path / 'hub.pth')
    read = read_checkpoint(tmp_path / 'hub.pth')['message_hub']
    assert read['log_scalars']['train/loss'].mean() == pytest.approx(1.)
    assert read['runtime_info']['best'] == .25


def test_numpys_names_of_either_generation_are_read(tmp_path):
    new, old = b'numpy._core.multiarray', b'numpy.core.multiarray'
    torch.save({'meta': {'best': np.float32(.25), 'history': np.arange(3.)}}, tmp_path / 'a.pth',
               _use_new_zipfile_serialization=False)
    content = (tmp_path / 'a.pth').read_bytes().replace(new, old)
    for name in (new, old):
        (tmp_path / 'a.pth').write_bytes(content.replace(old, name))
        meta = read_checkpoint(tmp_path / 'a.pth')['meta']
        assert meta['best'] == .25 and meta['history'].tolist() == [0., 1., 2.]


def test_everything_that_would_be_run_is_named(tmp_path):
    torch.save({'a': Code(tmp_path / 'x'), 'b': SimpleNamespace(lr=1)}, tmp_path / 'evil.pth')
    refuse(tmp_path / 'evil.pth', 'mkdir', 'types.SimpleNamespace', '--trust-checkpoint')


def test_states_of_generators_are_read(tmp_path):
    numpy, python = np.random.RandomState(3), random.Random(3)
    states = {'numpy': numpy.get_state(), 'python': python.getstate(),
              'torch': torch.get_rng_state(), 'empty': np.zeros((2, 0)), 'bytes': b''}
    torch.save({'meta': states}, tmp_path / 'a.pth')
    read = read_checkpoint(tmp_path / 'a.pth')['meta']
    again, other = np.random.RandomState(), random.Random()
    again.set_state(read['numpy'])
    other.setstate(read['python'])
    assert again.rand() == numpy.rand() and other.random() == python.random()
    assert torch.equal(read['torch'], states['torch'])
    assert read['empty'].shape == (2, 0) and read['bytes'] == b''


@pytest.mark.parametrize('zipped', [True, False])
def test_code_needs_to_be_trusted(tmp_path, zipped, monkeypatch):
    path, mark = tmp_path / 'mine.pth', tmp_path / 'it ran'
    torch.save({'a': torch.ones(1), 'args': Code(mark)}, path,
               _use_new_zipfile_serialization=zipped)
    refuse(path, 'refused', 'mkdir', '--trust-checkpoint')
    (tmp_path / 'plain.pkl').write_bytes(pickle.dumps(Code(mark)))
    refuse(tmp_path / 'plain.pkl')
    assert not mark.exists()
    said = []
    monkeypatch.setattr(files, 'print_log', lambda text, **_: said.append(text))
    try:
        trust_checkpoints(True)
        assert read_checkpoint(path)['a'] == 1
    finally:
        trust_checkpoints(False)
    assert mark.is_dir() and len(said) == 1 and str(path) in said[0]
    mark.rmdir()
    refuse(path, '--trust-checkpoint')
    assert not mark.exists()


@pytest.mark.parametrize('weights, said', [
    ({'a': torch.tensor([1., float('nan')])}, "'a' holds values that are not finite"),
    ({'state_dict': {'a.b': torch.tensor([float('inf')])}}, "'state_dict': 'a.b' holds"),
    ({'model': {'a': torch.tensor([float('nan')]).half()}}, "'model': 'a' holds"),
    ({'ema_state_dict': {'a': torch.tensor([float('nan')]).bfloat16()}}, 'ema_state_dict'),
    ({'a\nb': torch.ones(1)}, 'expected a plain name'),
    ({'a': torch.ones(1, dtype=torch.complex64)}, 'torch.complex64')])
def test_what_is_no_weight_is_named(tmp_path, weights, said):
    torch.save(weights, tmp_path / 'a.pth')
    refuse(tmp_path / 'a.pth', said)


def test_moments_and_losses_need_not_be_finite(tmp_path):
    moments = {'state': {0: {'exp_avg': torch.tensor([float('inf')])}}}
    torch.save({'state_dict': {'a': torch.ones(1)}, 'optimizer': moments}, tmp_path / 'a.pth')
    assert read_checkpoint(tmp_path / 'a.pth')['optimizer']['state'][0]['exp_avg'].isinf()


def test_messages_are_one_line_whatever_a_file_is_called(tmp_path):
    path = tmp_path / 'a\nb\x1b[2J.pth'
    path.write_text('text')
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    assert str(error.value).isprintable()
    assert 'a?b?[2J.pth: not a checkpoint: begins' in str(error.value)


@pytest.fixture
def loader():
    """mmengine's loader while it is ours."""
    from mmengine.runner import CheckpointLoader
    schemes = dict(CheckpointLoader._schemes)
    install_safe_loader()
    yield CheckpointLoader.load_checkpoint
    CheckpointLoader._schemes = schemes


def test_configs_in_a_checkpoint_are_left_out(tmp_path, loader):
    """mmengine's resume would run the first, its inferencers the others."""
    code = f'import os\nos.mkdir({str(tmp_path / "it ran")!r})\nmodel = dict()'
    torch.save({'state_dict': {}, 'meta': {'config': code, 'cfg': code, 'epoch': 1},
                'message_hub': {'runtime_info': {'cfg': code, 'iter': 2}}}, tmp_path / 'a.pth')
    read = loader(str(tmp_path / 'a.pth'), 'cpu')
    assert read == {'state_dict': {}, 'meta': {'epoch': 1},
                    'message_hub': {'runtime_info': {'iter': 2}}}
    torch.save({'a': torch.ones(1)}, tmp_path / 'bare.pth')
    assert list(loader(str(tmp_path / 'bare.pth'), 'cpu')) == ['a']
    torch.save({'meta': Code(tmp_path / 'it ran')}, tmp_path / 'evil.pth')
    with pytest.raises(CheckpointError):
        loader(str(tmp_path / 'evil.pth'), 'cpu')
    from mmengine.infer import BaseInferencer
    with pytest.raises(ValueError, match='Cannot find the config'):
        BaseInferencer._init_model(SimpleNamespace(), {}, str(tmp_path / 'a.pth'))
    assert not (tmp_path / 'it ran').exists()


def test_every_scheme_of_mmengine_is_ours(loader, monkeypatch):
    from mmengine.runner import CheckpointLoader
    asked = []
    monkeypatch.setattr(loader_module, 'read_checkpoint',
                        lambda path, *_: asked.append(path) or {'a': 1})
    for name in ('torchvision://resnet18', 'open-mmlab://vgg16_caffe', 'https://a.b/c.pth'):
        assert loader(name, 'cpu') == {'a': 1}
    assert len(asked) == 3 and all(path.startswith('https://') for path in asked)
    for name in ('s3://a/b.pth', 'petrel://a', 'x:s3://a', 'pavi://a', 'mmcls://a',
                 'torchvision://no'):
        with pytest.raises(CheckpointError, match=name):
            loader(name, 'cpu')
    for scheme, function in CheckpointLoader._schemes.items():
        assert function.__module__ == loader_module.__name__, scheme


@pytest.mark.parametrize('zipped', [True, False])
def test_the_arguments_that_trainers_save_are_read(tmp_path, zipped):
    """DeiT and LaPE put an argparse.Namespace beside the weights."""
    arguments = Namespace(lr=5e-4, model='deit', opt=[1, None])
    content = {'model': {'a': torch.ones(2)}, 'args': arguments}
    torch.save(content, tmp_path / 'best.pth', _use_new_zipfile_serialization=zipped)
    read = read_checkpoint(tmp_path / 'best.pth')
    assert read['args'] == content['args'] and torch.equal(read['model']['a'], torch.ones(2))
    content['args'].code = Code(tmp_path / 'mark')
    torch.save(content, tmp_path / 'bad.pth')
    refuse(tmp_path / 'bad.pth', 'refused')
    assert not (tmp_path / 'mark').exists()
