"""Everything that a run depends on, in one frozen record that is saved with its result."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, get_args

DType = Literal["float32", "bfloat16"]
DTYPES: Final[tuple[DType, ...]] = get_args(DType)
Mode = Literal["ddp", "fsdp", "hsdp"]  # how a model is spread over ranks
MODES: Final[tuple[Mode, ...]] = get_args(Mode)


@dataclass(frozen=True)
class RunSettings:
    """One run. What is not here does not change its numbers."""

    task: str
    size: str
    data: str
    optimizer: str  # the entrant, without its rate: "deva", "muon:nesterov=true"
    lr: float
    seed: int
    steps: int
    batch: int  # sequences, images or samples in a batch
    vocabulary: int | str = 0  # of text: the size of a byte-level BPE, or "gpt2"
    accumulate: int = 1  # batches in a step
    warmup: float = 0.0  # the share of the steps in which the rate rises from zero
    decay: float = 0.4  # the share of the steps, the last ones, in which it falls to zero
    clip: float = 0.0  # the greatest norm of the gradient; 0 does not clip
    evaluate_every: int = 50
    device: str = "cpu"
    dtype: DType = "float32"
    compile: bool = False
    telemetry: tuple[int, ...] = ()  # the steps after which the optimizer's telemetry is kept
    task_digest: str = ""  # of a user's task, as it was when the comparison began
    task_place: str = ""  # where a user's task is found here; another place is no other run

    @property
    def id(self) -> str:
        """A name for files: what one looks for first, then a hash of everything."""
        plain = "".join(c if c.isalnum() or c in "-.=" else "_" for c in self.optimizer)
        data = json.dumps(self.saved(), sort_keys=True).encode()
        digest = hashlib.blake2b(data, digest_size=4).hexdigest()
        return f"{plain}-lr{self.lr:g}-seed{self.seed}-{digest}"

    def rate(self, step: int) -> float:
        """What multiplies the learning rate in a step: a rise, a constant phase, a line to zero."""
        rise = (step + 1) / max(1.0, self.warmup * self.steps)
        fall = (self.steps - step) / max(1.0, self.decay * self.steps)
        return min(1.0, rise, fall)

    def evaluates(self, step: int) -> bool:
        """Whether the validation loss is taken after so many steps."""
        return step % self.evaluate_every == 0 or step == self.steps

    def saved(self) -> dict[str, Any]:
        """The record as JSON has it, without a place and with neither telemetry nor digest if none.

        So the names of runs without them are those that they had before there were any.
        """
        left_out = {
            "task_place",
            *(k for k in ("telemetry", "task_digest") if not getattr(self, k)),
        }
        return {key: value for key, value in asdict(self).items() if key not in left_out}

    def changed(self, **changes: Any) -> RunSettings:
        """The record with some fields replaced."""
        return replace(self, **changes)
