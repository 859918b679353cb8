"""What a run depends on besides its settings: versions and hardware, the device, random numbers."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import deva_optim

from ..errors import UsageError
from ..machine import machine
from .ranks import ALONE, Ranks


def environment(device: str, ranks: Ranks = ALONE) -> dict[str, Any]:
    """The versions and the hardware that a result depends on."""
    about = machine(device)
    together = {} if ranks.mode is None else {"parallel": ranks.mode, "ranks": ranks.size}
    return {
        "deva_optim": deva_optim.__version__,
        "torch": torch.__version__,
        "processor": about["gpu"] or about["cpu"],
        "device": device,
        **{name: about[name] for name in ("python", "platform", "cores", "threads", "commit")},
        **together,
    }


def device_of(text: str | None, *, elsewhere: bool = False) -> str:
    """The device to train on: the one given, else the default one.

    Raises:
        UsageError: If there is none such, or not here; `elsewhere`, it is one of other machines.
    """
    what = "--device" if text else "the default device"
    text = text or default_device()
    try:
        torch.device(text) if elsewhere else torch.zeros(1, device=text)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{what} {text} cannot be used here: {reason}") from error
    return text


def default_device() -> str:
    """What DEVA_DEVICE names, else the accelerator, if there is one, else the CPU."""
    if named := os.environ.get("DEVA_DEVICE"):
        return named
    if not torch.accelerator.is_available():
        return "cpu"
    found = torch.accelerator.current_accelerator()  # which torch 2.6 has without an argument
    return "cpu" if found is None else found.type


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
