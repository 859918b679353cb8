"""Being asked to stop: the first signal is a request, the second one is an order."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Whether SIGINT or SIGTERM has come while this was entered; call it to ask.

    Args:
        patient: Take a second one for the first again: torchrun passes on what a rank may have got
            already, and kills by itself what does not end.
        signals: Those that it hears.

    >>> with Stopping() as stopping:
    ...     before = stopping()
    ...     signal.raise_signal(signal.SIGTERM)
    ...     before, stopping(), stopping.exit_code
    (False, True, 143)
    """

    def __init__(self, *, patient: bool = False, signals: Sequence[int] = SIGNALS) -> None:
        self.signal: int | None = None
        self._patient, self._signals = patient, signals
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Whether a signal has come."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program that a signal has ended."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> Stopping:
        self._before = {number: signal.signal(number, self._hear) for number in self._signals}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        if not self._patient:
            signal.signal(number, self._before[number])
