"""What a worker does, wherever it is: one run, of which a driver hears through files."""

from __future__ import annotations

import socket
from collections.abc import Callable

import torch

from ..errors import UsageError
from ..run.runner import Orders, run_one
from ..run.settings import RunSettings
from .exchange import Exchange, Lease, Telling


def work(
    settings: RunSettings,
    orders: Orders,
    exchange: Exchange,
    threads: int,
    asked: Callable[[], bool] = lambda: False,
) -> None:
    """Carry out a run, from its checkpoint if it has one, and leave the outcome for the driver.

    Args:
        settings: The run.
        orders: What holds for all runs.
        exchange: Where the driver waits for word.
        threads: The threads of a product.
        asked: Whether the cluster asks this worker to end, as for a limit of time.

    Raises:
        UsageError: If this machine does not see the folder of the results.
    """
    if not orders.folder.is_dir():
        raise UsageError(not_seen(str(orders.folder), socket.gethostname()))
    if not exchange.lease.exists():
        return  # the driver has gone since it asked for this
    torch.set_num_threads(threads)
    lease, tell = Lease(exchange.lease), Telling(exchange.events(settings.id))
    try:
        result = run_one(settings, orders, watch=tell, stopping=lambda: asked() or lease())
    except UsageError as error:
        exchange.leave(settings.id, {"refused": str(error)})
    else:
        exchange.leave(settings.id, {"result": result})


def not_seen(folder: str, host: str) -> str:
    """What is wrong where a machine does not see the folder of the results."""
    return (
        f"{host} does not see {folder}: choose a folder with --out that is on storage which all "
        "machines of the cluster share, under the same path"
    )
