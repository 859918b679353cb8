"""The commands of `deva`, a module each: `add` says what it takes, `run` does it."""

from __future__ import annotations

import argparse
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
