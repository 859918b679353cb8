"""The next batch, made when it is asked for, or while the last one is used."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class InTurn(Generic[T]):
    """What `make(0)`, `make(1)`, … return, each made when it is asked for.

    >>> with InTurn(str, start=5) as batches:
    ...     batches.take(), batches.take()
    ('5', '6')
    """

    def __init__(self, make: Callable[[int], T], *, start: int) -> None:
        self._make, self._numbers = make, count(start)

    def take(self) -> T:
        """The next one."""
        return self._make(next(self._numbers))

    def __enter__(self) -> InTurn[T]:
        return self

    def __exit__(self, *exception: object) -> None:
        """There is nothing to end."""


class Ahead(Generic[T]):
    """What `make(0)`, `make(1)`, … return, each begun on a thread before it is asked for.

    >>> with Ahead(str, start=5) as ahead:
    ...     ahead.take(), ahead.take()
    ('5', '6')
    """

    def __init__(self, make: Callable[[int], T], *, start: int) -> None:
        self._make, self._next = make, start
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ahead")
        self._waiting: Future[T] = self._begin()

    def take(self) -> T:
        """The next one."""
        ready = self._waiting.result()
        self._waiting = self._begin()
        return ready

    def _begin(self) -> Future[T]:
        index, self._next = self._next, self._next + 1
        return self._thread.submit(self._make, index)

    def __enter__(self) -> Ahead[T]:
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.shutdown(cancel_futures=True)
