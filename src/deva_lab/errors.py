"""What is wrong with what the user asked for, in words for the user, and what is not installed."""

from __future__ import annotations

import difflib
import importlib.util
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final


class UsageError(ValueError):
    """A request that cannot be carried out; the command prints it and exits with code 2."""


class CommandError(RuntimeError):
    """What has gone wrong in a command that made sense, which prints it and exits with code 1."""


def unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is not known, with the nearest one that is.

    >>> print(unknown("optimizer", "muno", ["adamw", "muon"]))
    unknown optimizer 'muno', did you mean 'muon'? Known are adamw, muon
    """
    names = list(known)
    nearest = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0)
    hint = f", did you mean {nearest[0]!r}?" if nearest else "."
    return UsageError(f"unknown {what} {name!r}{hint} Known are {', '.join(names)}")


def check_least(options: object, **least: int) -> None:
    """Raises UsageError for an option that is given and not a number from its bound on."""
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and not bound <= value < math.inf:
            option, why = name.replace("_", "-"), " to have a spread" * (name == "rounds")
            raise UsageError(f"--{option} must be at least {bound}{why}, got {value:g}")


@cache
def warn(text: str) -> None:
    """Tell the user of something that goes on all the same, once."""
    print(f"deva: {text}", file=sys.stderr, flush=True)


# --- Extras --------------------------------------------------------------------------------------

# Extra of lab/pyproject.toml → the modules that it brings.
EXTRAS: Final[Mapping[str, Sequence[str]]] = {
    "hub": ("datasets", "pyarrow"),  # datasets asks for the other
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),  # the last two for a store on this machine
    "ray": ("ray",),
    "slurm": ("submitit",),
}


def require(extra: str, *modules: str) -> None:
    """Raise UsageError unless some modules of an extra, all unless named, are installed.

    None is imported. A folder of such a name where the command is typed, as W&B makes one, is no
    module.
    """
    for module in modules or EXTRAS[extra]:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            remedy = f'pip install "deva-optim[{extra}]"'
            raise UsageError(f"the package {module} is not installed: {remedy}")
