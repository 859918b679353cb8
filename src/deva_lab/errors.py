"""What is wrong with what the user asked for, in words for the user, and what is not installed."""

from __future__ import annotations

import difflib
import importlib.util
import math
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final


class UsageError(ValueError):
    """A request that cannot be carried out; the command prints it and exits with code 2."""


class CommandError(RuntimeError):
    """What has gone wrong in a command that made sense, which prints it and exits with code 1."""


class MissingExtra(UsageError):  # noqa: N818
    """A part of the laboratory that needs a package which is not installed.

    Attributes:
        package: What is missing.
        extra: The extra of this project that brings it.

    >>> print(MissingExtra("datasets", extra="hub"))
    the package datasets is not installed: pip install "deva-optim[hub]"
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(package, extra)  # all that it is made of, so that processes can pass it on
        self.package, self.extra = package, extra

    def __str__(self) -> str:
        return f"the package {self.package} is not installed: {self.remedy}"

    @property
    def remedy(self) -> str:
        """What to type."""
        return f'pip install "deva-optim[{self.extra}]"'


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

# Module → the package that has it, and the extra of pyproject.toml that brings it.
EXTRAS: Final[Mapping[str, tuple[str, str]]] = {
    "PIL": ("pillow", "lab"),
    "jinja2": ("jinja2", "lab"),
    "markdown_it": ("markdown-it-py", "lab"),
    "matplotlib": ("matplotlib", "lab"),
    "numpy": ("numpy", "lab"),
    "rich": ("rich", "lab"),
    "scipy": ("scipy", "lab"),
    "sklearn": ("scikit-learn", "lab"),
    "tokenizers": ("tokenizers", "lab"),
    "zstandard": ("zstandard", "lab"),
    "datasets": ("datasets", "hub"),
    "fsspec": ("fsspec", "hub"),  # datasets asks for this one and the next
    "pyarrow": ("pyarrow", "hub"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow-skinny", "mlflow"),
    "sqlalchemy": ("sqlalchemy", "mlflow"),  # of its store on this machine, as the next
    "alembic": ("alembic", "mlflow"),
    "ray": ("ray", "ray"),
    "submitit": ("submitit", "slurm"),
}


def require(module: str) -> None:
    """Raise MissingExtra unless the module is installed; it is not imported.

    A folder of that name where the command is typed, as W&B makes one, is no module.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise MissingExtra(*EXTRAS[module])


def extra_of(error: MissingExtra | ModuleNotFoundError) -> MissingExtra | None:
    """The extra that would have brought the module that was not found, if there is one.

    >>> print(extra_of(ModuleNotFoundError(name="sklearn.datasets")))
    the package scikit-learn is not installed: pip install "deva-optim[lab]"
    >>> print(extra_of(ModuleNotFoundError(name="deva_lab.mispelt")))
    None
    """
    if isinstance(error, MissingExtra):
        return error
    known = EXTRAS.get((error.name or "").partition(".")[0])
    return None if known is None else MissingExtra(*known)
