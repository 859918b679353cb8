"""Cases in chunks, in this process or in several."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import torch

from fuzz.draw import case_of
from fuzz.run import fault_of

CHUNK = 50  # cases that a process runs before it reports

Found = tuple[int, str, str]  # seed, invariant, the fault in words


def results(
    seed: int, cases: int | None, seconds: float | None, jobs: int
) -> Iterator[tuple[int, list[Found]]]:
    """Chunk by chunk: how many cases were run, and their faults."""
    stop = None if seconds is None else time.monotonic() + seconds
    chunks = _chunks(seed, cases, stop)
    if jobs == 1:
        _prepare()
        yield from map(_run_chunk, chunks)
        return
    # All chunks at once have no end where no number of cases is given: a few are on their way.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare) as pool:
        waiting = [pool.submit(_run_chunk, c) for c in itertools.islice(chunks, 2 * jobs)]
        while waiting:
            yield waiting.pop(0).result()
            waiting += [pool.submit(_run_chunk, c) for c in itertools.islice(chunks, 1)]


def _chunks(seed: int, cases: int | None, stop: float | None) -> Iterator[range]:
    end = None if cases is None else seed + cases
    for first in itertools.count(seed, CHUNK):
        if (end is not None and first >= end) or (stop is not None and time.monotonic() >= stop):
            return
        yield range(first, first + CHUNK if end is None else min(first + CHUNK, end))


def _prepare() -> None:
    torch.set_num_threads(1)  # tensors are tiny
    gc.collect()
    gc.freeze()  # what torch has imported is a third of a second for every full collection


def _run_chunk(seeds: range) -> tuple[int, list[Found]]:
    found = []
    for seed in seeds:
        fault = fault_of(case_of(seed))
        if fault is not None:
            found.append((seed, fault.invariant, str(fault)))
    return len(seeds), found
