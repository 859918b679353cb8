"""`deva train`: one run, which a kill at any moment sets back by no more than a checkpoint."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..display import display
from ..entrants import Entrant
from ..errors import UsageError
from ..files import append_line, write_text
from ..plan import plan
from ..publish import publish
from ..runner import Orders, run_one
from ..settings import RunSettings
from ..stopping import Stopping
from ..tasks import make_task
from . import Commands, add_command
from .options import (
    OPTIONS,
    add_output,
    add_training,
    command_line,
    given_options,
    output_folder,
    request_of,
)

OPTIMIZER = "deva"
DESCRIPTION = """\
Train one model. Checkpoints are written whole or not at all, and --resume goes on from the newest
to the same bits. SIGTERM and Ctrl-C save before they end it; a second one does not wait.

  deva train --optimizer deva:sides=short --size small --steps 2000 --out runs/first
  deva train --resume runs/first
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands, "train", help="one run, with checkpoints", description=DESCRIPTION
    )
    parser.add_argument("--optimizer", metavar="NAME[:SETTINGS]", help=f"({OPTIMIZER})")
    parser.add_argument("--lr", help="learning rate (the optimizer's usual one)")
    parser.add_argument("--seed", type=int, help="of weights and batches (0)")
    add_training(parser)
    add_output(parser, "train")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train; the exit code is 0, 1 if it diverged, 128 + the signal if one came."""
    folder = output_folder(options, "train")
    given = given_options(options, {"optimizer": OPTIMIZER, "seed": 0})
    settings = settings_of(given)
    write_text(folder / OPTIONS, json.dumps(given, indent=2) + "\n")
    shown = display()
    make_task(settings, report=shown.say)
    orders = Orders(folder, command_line(options.words), options.save_every, options.tensorboard)
    shown.begin([settings], 0)
    with Stopping() as stopping:
        try:
            result = run_one(settings, orders, watch=shown.event, stopping=stopping)
        finally:
            shown.end()
    if result["status"] == "stopped":
        shown.say(f"Stopped after step {result['step']}. To go on: deva train --resume {folder}")
        return stopping.exit_code
    append_line(folder / "results.jsonl", result)
    shown.say("\n" + publish([result], folder))
    return 0 if result["status"] == "finished" else 1


def settings_of(given: dict[str, Any]) -> RunSettings:
    """The run that options come to."""
    entrant = Entrant.parse(given["optimizer"])
    if "," in given.get("lr", ""):
        raise UsageError(f"--lr is one rate here, got {given['lr']}: deva compare takes several")
    if given["seed"] < 0:
        raise UsageError(f"--seed must be 0 or more, got {given['seed']}")
    asked = {key: value for key, value in given.items() if key not in ("optimizer", "seed")}
    (settings,) = plan(request_of({**asked, "seeds": f"{given['seed']},"}, [entrant]))
    return settings
