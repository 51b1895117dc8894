"""What the benchmarks share: rounds, peak memory, intervals, limits, tables and records.

All candidates are measured side by side. Each round measures every candidate once, in a random
order, and a ratio is taken within its round. Other work on the machine then hits both sides.

    python benchmarks/measure.py MODULE ARGUMENTS

prints the peak memory of the work that ``MODULE.build`` returns, in bytes; `peak_memory` runs it.
"""
from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn

from lape_mm.machine import commit, machine, versions
from lape_mm.runs.results import markdown

ROOT = Path(__file__).resolve().parents[1]
# glibc returns freed memory at once, so that the resident set is the memory in use
MALLOC = dict(MALLOC_ARENA_MAX='1', MALLOC_MMAP_THRESHOLD_='65536', MALLOC_TRIM_THRESHOLD_='65536')


def parser(doc: str, *, rounds: int) -> argparse.ArgumentParser:
    """The options of every benchmark."""
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument('--rounds', type=int, default=rounds, help='each measures all candidates')
    made.add_argument('--threads', type=int, default=2, help="torch's threads on the CPU")
    made.add_argument('--out', type=Path, help='the record, beside this file by default')
    return made


def device() -> str:
    """'cuda' if there is a GPU, else 'cpu'."""
    return 'cuda' if torch.cuda.is_available() else 'cpu'


def autocast() -> torch.autocast:
    """bfloat16 on a GPU, float32 on the CPU."""
    return torch.autocast(device(), torch.bfloat16, enabled=device() == 'cuda')


def described() -> dict:
    """Machine, load, versions and commit of a measurement."""
    return dict(machine(), load=round(os.getloadavg()[1], 1), **versions(), commit=commit())


def forward(model: nn.Module, images: torch.Tensor) -> Callable:
    """A call of the model without gradients, in `autocast`."""
    @torch.no_grad()
    def run() -> object:
        with autocast():
            return model(images)
    return run


def seconds(work: Callable[[], object]) -> float:
    """Time of one call in seconds; on a GPU by CUDA events, the mean of ten calls."""
    if device() == 'cpu':
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(10):
        work()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1000 / 10


def tune_malloc(function: str, *arguments: int) -> None:
    """Calls one of glibc's functions for memory; does nothing with another C library."""
    try:
        getattr(ctypes.CDLL(None), function)(*arguments)
    except (AttributeError, OSError):
        pass


def keep_memory() -> None:
    """Lets glibc keep freed memory for the next call.

    By default glibc may return a large tensor's memory and ask for new pages in the next call.
    Whether it does depends on the heap of all candidates, and costs up to a tenth of the time.
    """
    tune_malloc('mallopt', -4, 0)  # M_MMAP_MAX: no allocation has pages of its own
    tune_malloc('mallopt', -1, -1)  # M_TRIM_THRESHOLD: the heap never shrinks


def interleave(candidates: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1,
               budget: float = float('inf')) -> dict[str, list[float]]:
    """Measures every candidate once a round, each round in a random order.

    In a fixed order a candidate would always inherit the heat and memory of the same neighbour.
    The orders are the same in every run.

    Args:
        candidates: name -> function that measures once and returns the figure.
        rounds: how many figures to keep of each.
        warm_up: earlier rounds, whose figures are dropped.
        budget: seconds after which no round begins, except the first ones: 5 are always kept.

    Returns:
        name -> figures; entry i of every list is from the same round.
    """
    found: dict[str, list[float]] = {name: [] for name in candidates}
    draw, end = random.Random(0), time.monotonic() + budget
    for number in range(warm_up + rounds):
        if number >= warm_up + 5 and time.monotonic() > end:
            break
        for name in draw.sample(list(candidates), len(candidates)):
            found[name].append(candidates[name]())
    return {name: figures[warm_up:] for name, figures in found.items()}


def time_all(candidates: Mapping[str, Callable[[], object]], rounds: int,
             budget: float = float('inf')) -> dict[str, list[float]]:
    """`interleave` of each candidate's `seconds`, the fastest of three calls a round.

    The first call after another candidate's may be slow: its idle threads still spin, and its data
    is in the cache.
    """
    keep_memory()
    return interleave({name: lambda work=work: min(seconds(work) for _ in range(3))
                       for name, work in candidates.items()}, rounds, budget=budget)


def time_pair(what: str, candidates: Mapping[str, Callable[[], object]], name: str, base: str,
              limit: float, budget: float) -> dict:
    """The `bar` of a ratio of times: `time_all` of two candidates alone, for some seconds."""
    found = time_all({one: candidates[one] for one in (name, base)}, 1000, budget)
    return bar(what, ratios(found, name, base), limit)


def ratios(found: Mapping[str, Sequence[float]], name: str, base: str) -> list[float]:
    """Figures of one candidate over those of another, round by round."""
    return [one / other for one, other in zip(found[name], found[base])]


def interval(figures: Sequence[float]) -> list[float]:
    """95 % interval of the median: percentiles of 10,000 bootstrap samples, with a fixed seed."""
    samples = np.random.default_rng(0).choice(figures, (10_000, len(figures)))
    return np.quantile(np.median(samples, axis=1), [.025, .975]).tolist()


def bar(what: str, figures: Sequence[float], limit: float) -> dict:
    """A figure with a limit, for the record; ``figures`` has one entry a round."""
    return dict(what=what, limit=limit, median=median(figures), interval=interval(figures),
                figures=list(figures))


def verdict(row: Mapping) -> str:
    """'holds' or 'misses' if the whole interval lies on one side of the limit, else 'undecided'."""
    low, high = row['interval']
    return 'holds' if high <= row['limit'] else 'misses' if low > row['limit'] else 'undecided'


def peak_memory(module: str, arguments: Mapping, threads: int, warm_up: Mapping) -> float:
    """Peak memory of a piece of work above the memory in use before it, in bytes.

    A fresh process calls ``module.build(**arguments)``, which makes the model and returns the
    work. It runs the work twice, because an optimizer makes its state in the first step. On the
    CPU this is the peak of the resident set, after the same work at a smaller size has loaded all
    libraries; on a GPU it is torch's own count.

    Args:
        module: a benchmark beside this file.
        arguments: arguments of its ``build``, as JSON has them.
        threads: torch's threads.
        warm_up: changes of the arguments that make the work small.

    Raises:
        RuntimeError: the process failed; the message ends with its output.
    """
    given = json.dumps(dict(arguments=dict(arguments), threads=threads,
                            warm_up={**arguments, **warm_up}))
    done = subprocess.run([sys.executable, __file__, module, given], cwd=ROOT, text=True,
                          capture_output=True, env={**os.environ, **MALLOC})
    if done.returncode:
        raise RuntimeError(f'{module}.build({dict(arguments)}): {done.stderr.strip()[-2000:]}')
    return float(done.stdout.split()[-1])


def resident(field: str = 'VmRSS') -> int:
    """This process's resident set in bytes, or its peak ('VmHWM'), as Linux counts them."""
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def peak_of(work: Callable[[], object]) -> int:
    """Bytes by which the peak during two calls of ``work`` exceeds the memory in use before."""
    gc.collect()
    if device() == 'cuda':
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        tune_malloc('malloc_trim', 0)
        Path('/proc/self/clear_refs').write_text('5')  # resets the peak to the resident set
        before = resident()
    for _ in range(2):  # not in one expression, which would keep the first result
        work()
    peak = torch.cuda.max_memory_allocated() if device() == 'cuda' else resident('VmHWM')
    return peak - before


def remember_all(module: str, candidates: Mapping[str, Mapping], rounds: int, threads: int,
                 warm_up: Mapping) -> dict[str, list[float]]:
    """`interleave` of the `peak_memory` of each candidate's arguments, in MB."""
    return interleave(
        {name: lambda given=given: peak_memory(module, given, threads, warm_up) / 1e6
         for name, given in candidates.items()}, rounds, warm_up=0)


def spread(middle: float, ends: Sequence[float]) -> str:
    """A median and its interval, as in '1.012 (1.008-1.019)'."""
    return f'{middle:.3f} ({ends[0]:.3f}-{ends[1]:.3f})'


def limits_table(records: Sequence[Mapping]) -> str:
    """All figures that have a limit, as Markdown."""
    return markdown(['measured', 'median (95 % interval)', 'limit', ''], [
        [row['what'], spread(row['median'], row['interval']), f'{row["limit"]:g}', verdict(row)]
        for record in records for row in record['bars']])


def figures_tables(record: Mapping) -> list[str]:
    """The medians of a record as Markdown, each with its ratio to the row that ``bases`` names.

    Each measured list is a column. Neighbours that share a row share a table.
    """
    tables: list[dict[str, Mapping]] = []
    for title, found in record['measured'].items():
        if not tables or not any(set(found) & set(other) for other in tables[-1].values()):
            tables.append({})
        tables[-1][title] = found
    made = []
    for columns in tables:
        names = dict.fromkeys(name for found in columns.values() for name in found)
        bases = {name: record['bases'].get(name, '') for name in names}
        made.append(markdown(['measured', *columns, '(ratio to)'], [
            [name, *(cell(found, name, base) for found in columns.values()), base]
            for name, base in bases.items()]))
    return made


def cell(found: Mapping[str, Sequence[float]], name: str, base: str) -> str:
    """A row's median and, if its base is measured, too, the ratio, as in '0.317 (1.016)'."""
    if name not in found:
        return ''
    middle = f'{median(found[name]):.4g}'
    return f'{middle} ({median(ratios(found, name, base)):.3f})' if base in found else middle


def write(args: argparse.Namespace, name: str, record: Mapping) -> int:
    """Writes the record as JSON and prints its tables; 1 if a figure misses its limit.

    Args:
        args: of the benchmark; ``args.out`` is the file, or None.
        name: of the file beside this one; on a GPU it ends in '_cuda'.
        record: ``measured`` (column -> row -> figure of each round), ``bases`` (row -> row of its
            ratios) and ``bars``.
    """
    suffix = '_cuda' if device() == 'cuda' else ''
    path = args.out or ROOT / f'benchmarks/{name}{suffix}.json'
    given = {key: value for key, value in vars(args).items() if not isinstance(value, Path)}
    made = dict(described(), threads=args.threads, arguments=given, **record)
    path.write_text(json.dumps(made, indent=1) + '\n')
    print(*figures_tables(made), limits_table([made]), f'written to {path}', sep='\n\n')
    return int(any(verdict(row) == 'misses' for row in made['bars']))


if __name__ == '__main__':
    task = json.loads(sys.argv[2])
    torch.set_num_threads(task['threads'])
    build = importlib.import_module(sys.argv[1]).build
    build(**task['warm_up'])()
    print(peak_of(build(**task['arguments'])))
