"""Results as the laboratory writes them, made up: known curves instead of training."""

from __future__ import annotations

import math
import random
from typing import Any

from deva_lab.run.settings import RunSettings

Result = dict[str, Any]

# label → what its loss ends at, its best rate, how fast it falls, ms of its step, state per weight
ENTRANTS = {
    "deva": (3.035, 0.006, 1.5, 9.6, 9.1),
    "muon:nesterov=true": (3.056, 0.006, 1.4, 4.1, 4.0),
    "soap": (3.11, 0.003, 1.25, 14.2, 16.4),
    "adamw": (3.172, 0.003, 1.0, 1.9, 8.0),
}
RATES = (0.0015, 0.003, 0.006, 0.012)


def result(
    label: str = "adamw",
    *,
    loss: list[float | None],
    lr: float = 0.01,
    seed: int = 0,
    status: str = "finished",
    every: int = 100,
    seconds: float = 1.0,
    optimizer_ms: float = 2.0,
    state_bytes: int = 10_496_000,
) -> Result:
    """One result with the given losses, a validation every so many units of one step each."""
    steps = [every * index for index in range(len(loss))]
    return {
        "id": f"{label}-lr{lr}-seed{seed}",
        "label": label,
        "status": status,
        "settings": {
            "task": "gpt",
            "size": "small",
            "data": "python",
            "optimizer": label,
            "lr": lr,
            "seed": seed,
            "steps": 600,
            "batch": 8,
        },
        "unit": "tokens",
        "units": 2048,
        "parameters": 1_312_000,
        "state_bytes": state_bytes,
        "curve": {
            "step": steps,
            "units": [2048 * step for step in steps],
            "seconds": [seconds * step for step in steps],
            "train_loss": [None, *loss[1:]],
            "loss": loss,
        },
        "milliseconds": {"model": 71.2, "optimizer": optimizer_ms, "data": 0.2},
        "peak_memory_bytes": None,
        "environment": {
            "deva_optim": "0.1.0",
            "torch": "2.13.0",
            "python": "3.11.7",
            "platform": "Linux x86_64",
            "processor": "a processor of some kind, 2.1 GHz",
            "threads": 2,
            "device": "cpu",
            "commit": "abc1234",
        },
        "command": "deva compare --task gpt",
    }


def result_of(
    run: RunSettings,
    steps: list[int],
    *,
    status: str = "finished",
    unit: str = "tokens",
    units: int = 2048,
    parameters: int = 983_052,
    optimizer_ms: float = 9.0,
    model_ms: float = 90.0,
    **columns: list[float | None],
) -> Result:
    """The result of a run that has been evaluated after these steps."""
    times = {"model": model_ms, "optimizer": optimizer_ms, "data": 1.0}
    seconds = [0.1 * step for step in steps]
    return {
        "id": run.id,
        "label": run.optimizer,
        "status": status,
        "step": steps[-1],
        "settings": run.saved(),
        "unit": unit,
        "units": units,
        "parameters": parameters,
        "state_bytes": 1_000_000,
        "curve": {
            "step": steps,
            "units": [units * step for step in steps],
            "seconds": seconds,
            **columns,
        },
        "milliseconds": times,
        "mean_milliseconds": times,
        "environment": {"processor": "a processor", "commit": "abc"},
        "command": "deva race",
    }


def falling(label: str, lr: float, seed: int, points: int = 25) -> Result:
    """A run of a language model: a fast fall, a slow one, a last one as the rate decays."""
    end, best, speed, milliseconds, state = ENTRANTS[label]
    noise = random.Random(f"{label} {lr} {seed}")
    end += 0.09 * math.log2(lr / best) ** 2 + noise.gauss(0, 0.006)
    progress = [index / (points - 1) for index in range(points)]
    losses: list[float | None] = [
        8.35
        if not x
        else end
        + 5.2 * math.exp(-14 * speed * x)
        + (1 - x) * (1.25 / (1 + 2.2 * speed * x)) * (0.55 + 0.45 * (1 - x))
        + noise.gauss(0, 0.008)
        for x in progress
    ]
    losses[-1] = end
    return result(
        label,
        loss=losses,
        lr=lr,
        seed=seed,
        every=25,
        seconds=(71.4 + milliseconds) / 1000,
        optimizer_ms=milliseconds + noise.random() / 10,
        state_bytes=int(state * 1_312_000),
    )


def comparison() -> list[Result]:
    """Four optimizers at four rates with three seeds, and one that diverges everywhere."""
    runs = [falling(label, lr, seed) for label in ENTRANTS for lr in RATES for seed in range(3)]
    broken = falling("muon:nesterov=true", 0.012, 2)
    lost = [
        {**result("lion", loss=[8.35, 7.6, 9.9, None], lr=lr, seed=seed, every=25)}
        for lr in (0.001, 0.01)
        for seed in range(3)
    ]
    keep = [run for run in runs if run["id"] != broken["id"]]
    broken["curve"] = {key: values[:5] for key, values in broken["curve"].items()}
    return [*keep, *({**run, "status": "diverged"} for run in [broken, *lost])]


def recorded(run: Result) -> Result:
    """The same run with what telemetry has of two matrices."""
    steps = run["curve"]["step"][1:]
    rows = {
        step: {"update_ratio": 1 / step, "drift_left": 0.5, "drift_right": 0.25, "skipped": 0.0}
        for step in steps
    }
    telemetry = [
        {"step": step, "matrices": {"a": row, "b": {**row, "update_ratio": None, "skipped": 2.0}}}
        for step, row in rows.items()
    ]
    return {**run, "telemetry": telemetry}


def failed(label: str, error: str = "OutOfMemoryError: 3 GB", **settings: Any) -> Result:
    """What is left of a run that raised an error."""
    run = result(label, loss=[], status="failed", **settings)
    return {**{key: run[key] for key in ("id", "label", "status", "settings")}, "error": error}


def crowd(number: int = 20) -> list[Result]:
    """Many optimizers with one run each."""
    return [
        {**falling("deva", 0.006 * 1.1**index, 0), "label": f"method{index}", "id": f"{index}"}
        for index in range(number)
    ]
