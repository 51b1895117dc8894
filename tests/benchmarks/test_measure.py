import sys
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip('mmengine', reason='rich comes with it')
sys.path.insert(0, str(Path(__file__).parents[2] / 'benchmarks'))

import growth  # noqa: E402
import measure  # noqa: E402
import throughput  # noqa: E402


def test_candidates_take_turns_and_the_warm_up_is_dropped():
    seen, clock = [], count()

    def candidate(name):
        def measured():
            seen.append(name)
            return next(clock)
        return measured
    found = measure.interleave({name: candidate(name) for name in 'ABC'}, rounds=20)
    rounds = [''.join(seen[start:start + 3]) for start in range(0, 63, 3)]
    assert {''.join(sorted(order)) for order in rounds} == {'ABC'}  # all of them in each round
    assert {order[0] for order in rounds} == set('ABC')  # nobody is always the first
    assert found == {name: [3 * turn + rounds[turn].index(name) for turn in range(1, 21)]
                     for name in 'ABC'}


def test_a_ratio_is_taken_within_its_round():
    # the machine slows down threefold in the last rounds: the ratio does not see it
    found = {'ours': [1., 1.2, 3.3], 'theirs': [1., 1., 3.]}
    ratio = measure.ratio(found, 'ours', 'theirs')
    assert ratio['median'] == pytest.approx(1.1)
    assert ratio['range'] == pytest.approx([1., 1.2])
    assert ratio['quartiles'] == pytest.approx([1.05, 1.15])
    assert measure.ratio(found, 'ours', 'ours')['range'] == [1., 1.]


def test_one_round_has_no_spread():
    assert measure.summary([2.]) == dict(median=2., quartiles=[2., 2.], range=[2., 2.])


@pytest.mark.parametrize('power', [1., 1.22, 2.])
def test_exponent_of_a_power_law(power):
    pixels = [size ** 2 for size in growth.SIZES]
    assert measure.exponent(pixels, [3e-7 * count ** power for count in pixels]) \
        == pytest.approx(power)
    # of pixels, not of sides: four times as many from 512 to 1024
    step = growth.between([1., 2.], [4 ** power, 2 * 4 ** power])
    assert step['range'] == pytest.approx([power, power])


def test_a_bar_holds_up_to_its_limit():
    assert measure.bar('', dict(median=1.01), 1.01)['holds']
    assert not measure.bar('', dict(median=1.0101), 1.01)['holds']


def test_growth_by_model_and_side():
    found = {('a', 1): [1., 5., 2.], ('b', 1): [3.], ('a', 2): [7.]}
    assert growth.grown(found) == {'a': {1: 2., 2: 7.}, 'b': {1: 3.}}


def test_throughput_leaves_out_the_first_iterations():
    found = dict(images=8, time=[9., 1., 3.], data_time=[8., .5, .5])
    assert throughput.figures(found, skipped=1) == (4., .25)


def test_peak_memory_sees_what_is_freed_again():
    import torch
    assert measure.peak_of(lambda: torch.ones(16, 1024, 1024).sum()) > 50e6
    # once, though it is done twice: what the first returns is not kept
    assert measure.peak_of(lambda: torch.ones(16, 1024, 1024)) < 100e6


def test_what_a_record_says(tmp_path):
    args = measure.parser('Doc.', 'name', rounds=3).parse_args([])
    record = measure.describe(args)
    assert {'cpu', 'cores', 'load', 'commit', 'torch', 'timm', 'threads', 'rounds', 'arguments'} \
        <= set(record)
    measure.write(tmp_path / 'record.json', record)
    assert args.out == measure.ROOT / 'benchmarks/name.json'
