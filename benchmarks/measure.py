"""What the benchmarks share: rounds, ratios, bars, peak memory, tables and records.

Candidates are measured side by side: each round measures all of them, one after the other and in an
order of its own, and a ratio is taken within its round, so that what else runs on the machine hits
both sides of it. A figure is a median over rounds, with its quartiles.

    python benchmarks/measure.py MODULE ARGUMENTS

prints the peak memory of what ``MODULE.build`` makes, in bytes; `peak_memory` calls it.
"""
from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from quickstart import described
from rich.console import Console
from rich.table import Table

from lape_mm.machine import versions

ROOT = Path(__file__).resolve().parents[1]
# whether compiled, and the type of autocast
VARIANTS = {'eager': (False, None), 'compiled': (True, None), 'eager bf16': (False, torch.bfloat16),
            'compiled bf16': (True, torch.bfloat16)}
# freed memory goes back at once, so that the resident set is what is in use
MALLOC = dict(MALLOC_ARENA_MAX='1', MALLOC_MMAP_THRESHOLD_='65536', MALLOC_TRIM_THRESHOLD_='65536')


def parser(doc: str, name: str, *, rounds: int) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument('--rounds', type=int, default=rounds, help='each measures all candidates')
    made.add_argument('--threads', type=int, default=2, help='of torch, on the CPU')
    made.add_argument('--out', type=Path, default=ROOT / f'benchmarks/{name}.json')
    return made


def add_variants(made: argparse.ArgumentParser) -> None:
    """Adds --variants, whose default depends on the device."""
    made.add_argument('--variants', nargs='+', choices=VARIANTS, default=list(VARIANTS)
                      if torch.cuda.is_available() else ['eager'])


def device() -> str:
    """'cuda' where there is a GPU, else 'cpu'."""
    return 'cuda' if torch.cuda.is_available() else 'cpu'


def as_variant(model: torch.nn.Module, variant: str) -> Callable:
    """A model, on the device, as one of `VARIANTS`: a function of the same arguments."""
    compiled, dtype = VARIANTS[variant]
    call = torch.compile(model) if compiled else model

    def run(*args, **kwargs):
        with torch.autocast(device(), dtype, enabled=dtype is not None):
            return call(*args, **kwargs)
    return run


def describe(args: argparse.Namespace) -> dict:
    """What a record has beside its figures: machine, versions, commit, load, arguments."""
    return dict(
        **{**described(), **versions()}, device=torch.cuda.get_device_name() if device() == 'cuda'
        else 'cpu', rounds=args.rounds,
        arguments={key: value for key, value in vars(args).items()
                   if not isinstance(value, Path)})


def seconds(work: Callable[[], object], *, repeats: int | None = None) -> float:
    """Time of one call, in seconds; of ``repeats`` (10 on a GPU) by CUDA events there."""
    if device() == 'cuda':
        repeats = repeats or 10
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(repeats):
            work()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1000 / repeats
    start = time.perf_counter()
    for _ in range(repeats or 1):
        work()
    return (time.perf_counter() - start) / (repeats or 1)


def keep_memory() -> None:
    """Lets the C library keep freed memory for the next call, on the CPU.

    Else it gives large tensors back and asks for new pages in the next call, or it does not, as
    the heap of all candidates happens to lie.
    """
    try:
        tune = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return
    tune(-4, 0)  # M_MMAP_MAX: no allocation has pages of its own
    tune(-1, -1)  # M_TRIM_THRESHOLD: the top of the heap is never given back


def interleave(candidates: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1) \
        -> dict[str, list[float]]:
    """Measures A, B, C, then C, A, B, ...: all of them a round, each round in a random order.

    In a fixed order the same candidate would always come after the same other one, whose heat and
    memory it finds. The orders are the same in every run.

    Args:
        candidates: name -> function that measures once and returns the figure.
        rounds: how many figures to keep of each.
        warm_up: rounds before, which are dropped.

    Returns:
        name -> ``rounds`` figures; entry i of all of them stems from the same round.
    """
    found: dict[str, list[float]] = {name: [] for name in candidates}
    draw = random.Random(0)
    for _ in range(warm_up + rounds):
        for name in draw.sample(list(candidates), len(candidates)):
            found[name].append(candidates[name]())
    return {name: figures[warm_up:] for name, figures in found.items()}


def time_all(candidates: Mapping[str, Callable[[], object]], rounds: int, calls: int = 3) \
        -> dict[str, list[float]]:
    """`interleave` of the `seconds` that each candidate takes: the fastest of some calls a round.

    What slows a call down is something else on the machine; it is seldom there three times.
    """
    keep_memory()
    return interleave({name: lambda work=work: min(seconds(work) for _ in range(calls))
                       for name, work in candidates.items()}, rounds)


def summary(figures: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and extremes."""
    low, middle, high = (statistics.quantiles(figures, n=4, method='inclusive')
                         if len(figures) > 1 else list(figures) * 3)
    return dict(median=middle, quartiles=[low, high], range=[min(figures), max(figures)])


def ratio(found: Mapping[str, Sequence[float]], name: str, base: str) -> dict[str, float]:
    """`summary` of the ratios, each within its round; the median of ratios, not of figures."""
    return summary([one / other for one, other in zip(found[name], found[base])])


def exponent(sizes: Sequence[float], figures: Sequence[float]) -> float:
    """k of the power law figure ~ size^k, least squares on a double logarithmic scale."""
    x, y = ([math.log(value) for value in values] for values in (sizes, figures))
    return statistics.linear_regression(x, y).slope


def bar(what: str, figure: Mapping, limit: float) -> dict:
    """A row of the bars: holds where the median is at most the limit."""
    return dict(what=what, figure=dict(figure), limit=limit, holds=figure['median'] <= limit)


def peak_memory(module: str, arguments: Mapping, threads: int, warm_up: Mapping | None = None) \
        -> float:
    """Peak memory of a piece of work above what is there before it, in bytes.

    In a fresh process: ``module.build(**arguments)`` makes the model and returns the work, which
    then runs twice, since an optimizer makes its state in the first step. On the CPU the peak of
    the resident set, with libraries loaded by the same work at a smaller size; on a GPU torch's
    own count.

    Args:
        module: a benchmark beside this file.
        arguments: of its ``build``; what JSON can say.
        threads: of torch.
        warm_up: arguments that make it small.

    Raises:
        RuntimeError: the process failed; with the end of what it said.
    """
    given = json.dumps(dict(arguments=dict(arguments), threads=threads,
                            warm_up={**arguments, **(warm_up or {})}))
    done = subprocess.run([sys.executable, __file__, module, given], cwd=ROOT, text=True,
                          capture_output=True, env={**os.environ, **MALLOC})
    if done.returncode:
        raise RuntimeError(f'{module}.build({dict(arguments)}): {done.stderr.strip()[-2000:]}')
    return float(done.stdout.split()[-1])


def resident(field: str = 'VmRSS') -> int:
    """Bytes of this process's resident set, or its peak, 'VmHWM', as Linux counts them."""
    try:
        for line in Path('/proc/self/status').read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    unit = 1 if sys.platform == 'darwin' else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peak_of(work: Callable[[], object]) -> int:
    """Bytes by which ``work``, done twice, exceeds what is in use before it."""
    gc.collect()
    if device() == 'cuda':
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(2):
            work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # another C library
        pass
    try:
        Path('/proc/self/clear_refs').write_text('5')  # the peak is now what is resident
    except OSError:
        pass  # the peak since the process began, which loading the model may have set
    before = resident()
    for _ in range(2):  # not in one expression, which would keep what the first returns
        work()
    return resident('VmHWM') - before


def remember_all(module: str, candidates: Mapping[str, Mapping], rounds: int, threads: int,
                 warm_up: Mapping | None = None) -> dict[str, list[float]]:
    """`interleave` of the `peak_memory` of each candidate's arguments, in MB."""
    return interleave(
        {name: lambda given=given: peak_memory(module, given, threads, warm_up) / 1e6
         for name, given in candidates.items()}, rounds, warm_up=0)


def spread(figure: Mapping, digits: int = 3) -> str:
    """A median and its quartiles, as in '1.012 (1.008-1.019)'."""
    low, high = figure['quartiles']
    return f'{figure["median"]:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})'


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on the terminal, numbers to the right."""
    made = Table(*columns[:1], title=title, title_justify='left')
    for column in columns[1:]:
        made.add_column(column, justify='right')
    for row in rows:
        made.add_row(*row)
    # a pipe has no width, and would cut what it is there to keep
    Console(width=None if sys.stdout.isatty() else 140).print(made)
    sys.stdout.flush()  # a log shows it while the next one is measured


def ratio_table(title: str, found: Mapping[str, Sequence[float]], bases: Sequence[str], unit: str,
                digits: int = 3) -> None:
    """Prints each candidate's median and its ratio to each of the bases."""
    print_table(title, ['', unit, *(f'/ {base}' for base in bases)],
                [[name, f'{statistics.median(figures):.{digits}f}',
                  *(spread(ratio(found, name, base)) for base in bases)]
                 for name, figures in found.items()])


def bar_table(bars: Sequence[Mapping]) -> None:
    """Prints what the bars are and whether they hold."""
    print_table('bars', ['', 'median (quartiles)', 'bar', ''],
                [[row['what'], spread(row['figure']), f'<= {row["limit"]:g}',
                  'holds' if row['holds'] else 'missed'] for row in bars])


def write(path: Path, record: Mapping) -> None:
    """The record as JSON."""
    path.write_text(json.dumps(record, indent=1, default=str) + '\n')
    print(f'written to {path}')


if __name__ == '__main__':
    task = json.loads(sys.argv[2])
    torch.set_num_threads(task['threads'])
    build = importlib.import_module(sys.argv[1]).build
    build(**task['warm_up'])()
    print(peak_of(build(**task['arguments'])))
