"""`deva report`: the table, the curves and the page of runs that are finished."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import UsageError
from ..render.pages import Comparison
from ..results import read_results
from ..run.progress import Result, is_failed
from .options import command_line

SHARED = (
    *("task", "task_digest", "size", "data", "vocabulary"),
    *("steps", "batch", "accumulate", "decay", "warmup", "clip", "dtype"),
)


def run(options: argparse.Namespace) -> int:
    """Publish what the folders have."""
    results = merged(options.folders)
    several = len(options.folders) > 1
    first = options.folders[0]
    folder = options.out or (first.parent if first.is_file() else first)
    command = command_line(options.words) if several else None
    comparison = Comparison(results, baseline=options.baseline, command=command)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = comparison.publish(folder)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to ({error}): name another, --out") from error
    print(comparison.markdown() if options.markdown else text)
    return 0


def merged(folders: list[Path]) -> list[Result]:
    """The results of several folders; of two with the same optimizer, rate and seed the later."""
    results: list[Result] = []
    for folder in folders:
        path = folder if folder.is_file() else folder / "results.jsonl"
        if not path.is_file():
            raise UsageError(f"{folder} has no results.jsonl: name the folder of a comparison")
        results += read_results(path)
    if not results:
        raise UsageError(f"no run has finished in {', '.join(map(str, folders))}")
    for name in SHARED:
        values = {str(result["settings"].get(name)) for result in results}
        if len(values) > 1:
            raise UsageError(
                f"runs that differ in {name} ({', '.join(sorted(values))}) do not compare"
            )
    # How often a run was evaluated, and whether its telemetry was kept, makes no other seed of it.
    # What has failed in one folder may have ended in another.
    results.sort(key=is_failed, reverse=True)
    apart = {(x["label"], x["settings"]["lr"], x["settings"]["seed"]): x for x in results}
    return list(apart.values())
