"""What the laboratory needs beyond torch: which module comes with which extra."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from .errors import MissingExtra

# Module → the package that has it, and the extra of pyproject.toml that brings it.
EXTRAS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
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
)


def require(module: str) -> None:
    """Raise MissingExtra unless the module is installed; it is not imported.

    A folder of that name where the command is typed, as W&B makes one, is no module.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise MissingExtra(*EXTRAS[module])


def extra_of(error: ModuleNotFoundError) -> MissingExtra | None:
    """The extra that would have brought the module that was not found, if there is one.

    >>> print(extra_of(ModuleNotFoundError(name="sklearn.datasets")))
    the package scikit-learn is not installed: pip install "deva-optim[lab]"
    >>> print(extra_of(ModuleNotFoundError(name="deva_lab.mispelt")))
    None
    """
    known = EXTRAS.get((error.name or "").partition(".")[0])
    return None if known is None else MissingExtra(*known)
