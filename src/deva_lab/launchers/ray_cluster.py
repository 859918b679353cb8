"""Runs as tasks of a Ray cluster: one that there is, or one on this machine that ends with us."""

from __future__ import annotations

import argparse
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import ray

from ..errors import UsageError, warn
from ..machine import cores
from ..usage import CPUS

OBJECT_STORE: Final = 100 << 20  # bytes: next to nothing goes through it
ANSWERS: Final = 10.0  # seconds that a cluster has to answer
ENVIRONMENT: Final = ("DEVA_", "HF_", "MLFLOW_", "WANDB_")  # beginnings of what workers get of ours


class RayCluster:
    """A Ray cluster; a context in which there is a connection to it.

    Args:
        options: Of the command line.
    """

    tries = 3

    def __init__(self, options: argparse.Namespace) -> None:
        self.address: str | None = options.ray_address
        self.cpus, self.gpus = options.cpus or CPUS, options.gpus or 0.0
        self.memory = int((options.memory or 0) * (1 << 30))
        self._ours = False

    def __enter__(self) -> RayCluster:
        if not ray.is_initialized():
            self._connect()
            self._ours = True
        self._check_size()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._ours:
            ray.shutdown()

    def start(self, name: str, function: Callable[..., None]) -> Task:
        """Have a function called; the driver tries again what is lost, so Ray need not."""
        needs = {"num_cpus": self.cpus, "num_gpus": self.gpus, "memory": self.memory or None}
        call = ray.remote(_call).options(name=name, max_retries=0, **needs)
        ours = {key: value for key, value in os.environ.items() if key.startswith(ENVIRONMENT)}
        return Task(call.remote(function, Path.cwd(), ours))

    def _connect(self) -> None:
        # Ray's future behaviour, and its warning about it is not for our users.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        named = self.address or os.environ.get("RAY_ADDRESS")
        if named != "local":
            try:
                _check_answer(named or "")
                ray.init(address=named or "auto", **quiet)
                return
            except (OSError, RuntimeError, ValueError) as error:
                if named is not None:
                    reason = str(error).strip().splitlines()[0]
                    raise UsageError(f"--ray-address {named} cannot be used: {reason}") from error
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            address="local",
            num_cpus=cores(),
            object_store_memory=OBJECT_STORE,
            include_dashboard=False,
            **quiet,
        )

    def _check_size(self) -> None:
        """Warn if no machine is large enough for a run, which would then wait for one."""
        needs = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}
        alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
        if not any(all(has.get(x, 0) >= amount for x, amount in needs.items()) for has in alive):
            warn("no machine of the Ray cluster is large enough for a run: they wait for one")


class Task:
    """A call that Ray makes."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def ended(self) -> str | None:
        """None while it waits or runs; "" if it has returned; otherwise how it was lost.

        Raises:
            UsageError: If its machine cannot carry out any run, as it does not see the folder.
        """
        done, _ = ray.wait([self._result], timeout=0)
        if not done:
            return None
        try:
            ray.get(self._result)
        except ray.exceptions.RayError as error:
            if isinstance(cause := getattr(error, "cause", None), UsageError):
                raise cause from error
            return _reason(error)
        return ""

    def cancel(self) -> None:
        """End its process, if there is one."""
        ray.cancel(self._result, force=True)


def _reason(error: Exception) -> str:
    """An error of Ray in a line; of one that was raised by what it called, the last one."""
    raised = isinstance(error, ray.exceptions.RayTaskError)
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1 if raised else 0]}"


def _call(function: Callable[[], None], place: Path, environment: Mapping[str, str]) -> None:
    """In a worker: call a function where relative paths and variables mean what they do here."""
    os.environ.update(environment)
    with suppress(FileNotFoundError):
        os.chdir(place)
    function()


def _check_answer(address: str) -> None:
    """Raises OSError if nothing answers at HOST:PORT; Ray itself would wait for very long."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS).close()
