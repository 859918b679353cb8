"""Runs in Weights & Biases."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from ..errors import UsageError
from ..extras import require
from ..files import write_record
from ..results import Outcome, Values
from .subject import PROJECT, Subject, kept_record
from .wandb_files import steps_in

# In seconds: how often an offline run is written, and how long to wait for a server at the end,
# after which `wandb sync` sends the rest.
_DEFAULTS: Final = {
    "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": "1",
    "WANDB_FINISH_TIMEOUT": "60",
    "WANDB_FINISH_TIMEOUT_RAISES": "true",
}


def check() -> None:
    """Raises UsageError if it is not installed, or nobody has logged in to it."""
    require("wandb")
    if os.environ.get("WANDB_MODE", "online") != "online":
        return
    import wandb

    try:
        wandb.login()
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"--log wandb: {reason} Without a login, set WANDB_MODE=offline"
        ) from error


class WandB:
    """A run of Weights & Biases; offline each life of it is a folder, which `wandb sync` joins."""

    def __init__(self, subject: Subject) -> None:
        import wandb

        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        path = subject.kept / "wandb.json"
        id_ = str(kept_record(path).get("id") or secrets.token_hex(4))
        write_record(path, {"id": id_})
        folder = Path(os.environ.get("WANDB_DIR") or subject.folder)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            group=os.environ.get("WANDB_RUN_GROUP") or subject.group,
            name=subject.id,
            id=id_,
            resume="allow",
            dir=folder,
            config={**subject.settings, **subject.about},
            allow_val_change=True,
            settings=wandb.Settings(silent=True, console="off"),
        )
        # Online the server knows. Offline the files do: what a kill has kept out of them is lost.
        self.last = max([int(self._run.step) - 1, *steps_in(folder, id_)])

    def add(self, step: int, values: Values) -> None:
        """Send a point."""
        self._run.log(dict(values), step=step, commit=True)

    def end(self, status: str, outcome: Outcome) -> None:
        """Send how it ended."""
        self._run.summary.update(dict(outcome))
        self._run.finish(exit_code=0 if status == "finished" else 1)
