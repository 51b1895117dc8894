"""Intervals, verdicts and records."""
import json
from argparse import Namespace

import measure
import pytest
import torch


def test_the_interval_holds_the_true_median_in_95_of_100_runs():
    draw = torch.Generator().manual_seed(0)
    ends = [measure.interval((1 + .05 * torch.randn(40, generator=draw)).tolist())
            for _ in range(100)]
    held = sum(low <= 1 <= high for low, high in ends) / len(ends)
    assert .88 <= held <= .99, held


@pytest.mark.parametrize('limit, verdict', [
    (1.5, 'holds'), (1.2, 'holds'), (1.19, 'undecided'), (1., 'undecided'), (.99, 'misses')])
def test_a_verdict_needs_the_whole_interval(limit, verdict):
    assert measure.verdict(measure.bar('', [1., 1.1, 1.2], limit)) == verdict


@pytest.mark.parametrize('limit, status', [(1.05, 0), (.5, 1)])
def test_a_record_is_printed_and_only_a_miss_fails(limit, status, tmp_path, capsys):
    args = Namespace(out=tmp_path / 'record.json', threads=2, rounds=2)
    measured = {'inference, s': {'ours': [1., 1.2], 'theirs': [1., 1.]}, 'memory, MB': {
        'ours': [3., 3.]}, 'start-up, s': {'help': [.5, .7]}}
    bars = [measure.bar('ours / theirs', [1., 1.2], limit)]
    assert measure.write(args, 'any', dict(
        measured=measured, bases={'ours': 'theirs'}, bars=bars)) == status
    printed = capsys.readouterr().out
    assert '| ours | 1.1 (1.100) | 3 | theirs |\n| theirs | 1 |  |  |' in printed
    assert '| measured | start-up, s | (ratio to) |' in printed  # shares no row with the others
    assert '| ours / theirs | 1.100 (1.000-1.200) |' in printed
    record = json.loads(args.out.read_text())
    assert {'cpu', 'load', 'commit', 'torch', 'timm', 'threads', 'arguments'} <= set(record)
    assert record['measured'] == measured and record['bars'][0]['figures'] == [1., 1.2]
