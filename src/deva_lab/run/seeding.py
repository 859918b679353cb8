"""Random numbers of torch, NumPy and Python that depend on a seed alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Let all random numbers from now on follow from a seed."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def seeded(seed: int, device: str = "cpu") -> Iterator[None]:
    """Random numbers that follow from a seed; those drawn afterwards are as if there were none."""
    devices = [torch.cuda.current_device()] if device.startswith("cuda") else []
    of_numpy, of_python = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices):
        seed_all(seed)
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)
