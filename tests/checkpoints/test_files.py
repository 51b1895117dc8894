import os
import pickle
import random
from argparse import Namespace

import numpy as np
import pytest
import torch

from lape_mm.checkpoints import CheckpointError, install_safe_loader, read_checkpoint


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


def test_weights_come_back(tmp_path):
    weights = {'state_dict': {'a': torch.randn(3)}, 'meta': {'epoch': 3}}
    torch.save(weights, tmp_path / 'a.pth')
    read = read_checkpoint(tmp_path / 'a.pth')
    assert torch.equal(read['state_dict']['a'], weights['state_dict']['a'])
    assert read['meta'] == {'epoch': 3}


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip('safetensors.torch', reason='safetensors is not installed')
    safetensors.save_file({'a': torch.ones(2)}, tmp_path / 'a.safetensors')
    assert torch.equal(read_checkpoint(tmp_path / 'a.safetensors')['a'], torch.ones(2))
    (tmp_path / 'b.safetensors').write_bytes(b'nothing')
    refuse(tmp_path / 'b.safetensors')


@pytest.mark.parametrize('zipped', [True, False])
def test_code_is_refused_and_not_run(tmp_path, zipped):
    mark = tmp_path / 'it ran'
    torch.save({'state_dict': {'a': torch.ones(1)}, 'meta': Code(mark)}, tmp_path / 'evil.pth',
               _use_new_zipfile_serialization=zipped)
    refuse(tmp_path / 'evil.pth', 'refused', 'mkdir')
    (tmp_path / 'plain.pkl').write_bytes(pickle.dumps(Code(mark)))
    refuse(tmp_path / 'plain.pkl')
    assert not mark.exists()


def test_a_truncated_file_is_one_clear_error(tmp_path):
    torch.save({'a': torch.randn(1000)}, tmp_path / 'whole.pth')
    content = (tmp_path / 'whole.pth').read_bytes()
    for share in (0, .01, .5, .9, .99):
        (tmp_path / 'cut.pth').write_bytes(content[:int(share * len(content))])
        refuse(tmp_path / 'cut.pth')


def test_a_changed_byte_never_escapes_as_another_error(tmp_path):
    torch.save({'a': torch.randn(20), 'meta': {'x': [1, 'two']}}, tmp_path / 'whole.pth')
    content, rng = (tmp_path / 'whole.pth').read_bytes(), random.Random(0)
    for _ in range(200):
        changed = bytearray(content)
        for _ in range(rng.randint(1, 20)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        (tmp_path / 'changed.pth').write_bytes(bytes(changed))
        try:
            read_checkpoint(tmp_path / 'changed.pth')
        except CheckpointError:
            pass


def test_other_files(tmp_path):
    refuse(tmp_path / 'nowhere.pth', 'no such file')
    refuse(tmp_path, 'no such file')
    (tmp_path / 'text.pth').write_text('<html>404</html>')
    refuse(tmp_path / 'text.pth')
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
    pytest.importorskip('mmengine', reason='mmengine is not installed')
    from mmengine.logging import MessageHub
    hub = MessageHub.get_instance('test_files')
    hub.update_scalar('train/loss', 1.5)
    hub.update_scalar('train/loss', torch.tensor(.5))
    hub.update_info('best', np.float64(.25))
    torch.save({'state_dict': {}, 'message_hub': hub.state_dict()}, tmp_path / 'hub.pth')
    read = read_checkpoint(tmp_path / 'hub.pth')['message_hub']
    assert read['log_scalars']['train/loss'].mean() == pytest.approx(1.)
    assert read['runtime_info']['best'] == .25


def test_the_safe_loader_serves_all_of_mmengine(tmp_path):
    runner = pytest.importorskip('mmengine.runner', reason='mmengine is not installed')
    schemes = dict(runner.CheckpointLoader._schemes)
    try:
        install_safe_loader()
        torch.save({'state_dict': {}, 'meta': {'config': 'import os', 'epoch': 1}},
                   tmp_path / 'a.pth')
        read = runner.CheckpointLoader.load_checkpoint(str(tmp_path / 'a.pth'), 'cpu')
        assert read['meta'] == {'epoch': 1}  # mmengine's resume would run 'config'
        torch.save({'meta': Code(tmp_path / 'it ran')}, tmp_path / 'evil.pth')
        with pytest.raises(CheckpointError):
            runner.CheckpointLoader.load_checkpoint(str(tmp_path / 'evil.pth'), 'cpu')
        assert not (tmp_path / 'it ran').exists()
    finally:
        runner.CheckpointLoader._schemes = schemes


def test_the_arguments_that_trainers_save_are_read(tmp_path):
    """DeiT and LaPE put an argparse.Namespace beside the weights."""
    content = {'model': {'a': torch.ones(2)}, 'args': Namespace(lr=5e-4, model='deit')}
    torch.save(content, tmp_path / 'best_checkpoint.pth')
    read = read_checkpoint(tmp_path / 'best_checkpoint.pth')
    assert read['args'] == content['args'] and torch.equal(read['model']['a'], torch.ones(2))
