"""Where a run was made: versions, hardware and commit, in the form that results have them."""

from __future__ import annotations

import os
from typing import Any

import torch

import deva_optim

from ..bench.machine import machine
from .ranks import ALONE, Ranks


def environment(device: str, ranks: Ranks = ALONE) -> dict[str, Any]:
    """The versions and the hardware that a result depends on."""
    about = machine(device)
    together = {} if ranks.mode is None else {"parallel": ranks.mode, "ranks": ranks.size}
    return {
        "deva_optim": deva_optim.__version__,
        "torch": torch.__version__,
        "python": about["python"],
        "platform": about["platform"],
        "processor": about["gpu"] or about["cpu"],
        "cores": about["cores"],
        "threads": about["threads"],
        "device": device,
        "commit": about["commit"],
        **together,
    }


def default_device() -> str:
    """What DEVA_DEVICE names, else the accelerator, if there is one, else the CPU."""
    if named := os.environ.get("DEVA_DEVICE"):
        return named
    if not torch.accelerator.is_available():
        return "cpu"
    found = torch.accelerator.current_accelerator()  # which torch 2.6 has without an argument
    return "cpu" if found is None else found.type
