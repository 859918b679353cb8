"""Compare the cost of a step: ours, a plain Muon, and the peers that are installed.

    deva bench step                                 what the requirements ask about
    deva bench step gpt-768 --only 'deva-*' muon    some subjects on one set of shapes
    deva bench step --dims 128,256,512 --only deva-short muon     how the cost grows
    deva bench step --task my_task.py --only deva muon    the hidden matrices of your own model
    deva bench step --list                          what there is to choose from

Subjects take turns, round after round, and ratios are taken within rounds. A table and the
requirements that were set are printed; all numbers and a chart are written to runs/bench/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import torch

from .chart import bar_chart, growth_chart
from .checks import checks
from .machine import machine, summary
from .report import document, growth_table, listing, table, write_json
from .results import SetResult, measure_set
from .settings import Settings, SettingsError, matching, unknown
from .shapes import shape_set
from .subjects import SUBJECTS

OUT: Final = Path("runs/bench/step")
NUMBERS: Final = (
    "rounds", "steps", "warmup", "refresh_every", "gradients", "threads", "seed", "peak_size",
)  # fmt: skip

Say = Callable[[str], None]


def run(settings: Settings, out: Path = OUT, show: Say = print, say: Say = lambda _: None) -> bool:
    """Measure, show tables and checks, write files; returns whether all checks hold."""
    subjects = [SUBJECTS[name] for name in matching(settings.only, SUBJECTS, kind="subject")]
    if settings.baseline not in SUBJECTS:
        raise SettingsError(unknown("baseline", settings.baseline, SUBJECTS))
    sets = [shape_set(name) for name in settings.sets]
    if settings.threads:
        torch.set_num_threads(settings.threads)
    show(f"{settings}\n{summary(machine(settings.device))}\n")
    found: list[SetResult] = []
    for shapes in sets:
        found.append(measure_set(shapes, subjects, settings, say))
        show(table(found[-1], settings))
        show("\n".join(map(str, checks(found[-1], settings))) + "\n")
        save(found, settings, out)  # after each, so that an interruption costs little
    if settings.dims:
        show(growth_table(found) + "\n")
    show("written: {} and {}".format(*files(out)))
    return all(check.holds for one in found for check in checks(one, settings))


def save(found: Sequence[SetResult], settings: Settings, out: Path) -> None:
    """Write the numbers and the chart."""
    numbers, picture = files(out)
    write_json(numbers, document(found, settings))
    caption = summary(machine(settings.device))
    if settings.dims:
        chart = growth_chart(found, settings.dims[: len(found)], caption)
    else:
        chart = bar_chart(found, settings.baseline, caption)
    picture.write_text(chart, "utf-8")


def files(out: Path) -> tuple[Path, Path]:
    """Where the numbers and the chart go."""
    return out.with_name(f"{out.name}.json"), out.with_name(f"{out.name}.svg")


def parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    layout = argparse.RawDescriptionHelpFormatter
    found = argparse.ArgumentParser("deva bench step", None, __doc__, formatter_class=layout)
    add, default = found.add_argument, Settings()
    add("shapes", nargs="*", help=f"sets of shapes ({' '.join(default.shapes)})")
    add("--task", metavar="FILE", help="my_task.py: the hidden matrices of your own model")
    add("--dims", type=widths, default=(), help="widths of one GPT block, 128,256,…")
    add("--only", nargs="+", default=default.only, metavar="NAME", help="subjects, or globs (all)")
    add("--baseline", default=default.baseline, help="what the others are divided by (%(default)s)")
    for name in NUMBERS:
        value = getattr(default, name)
        add(f"--{name.replace('_', '-')}", type=int, default=value, help="(%(default)s)")
    add("--device", default=default.device, help="(%(default)s)")
    add("--no-profile", action="store_true", help="time alone: no FLOPs, no peak, no profile")
    add("--out", type=Path, default=OUT, help="where to write, without suffix (%(default)s)")
    add("--strict", action="store_true", help="exit with 1 if a requirement does not hold")
    add("--list", action="store_true", help="show all sets of shapes and all subjects")
    return found


def widths(text: str) -> tuple[int, ...]:
    """Numbers between commas, in order, each once."""
    return tuple(sorted({int(part) for part in text.split(",")}))


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that the options of the command line ask for."""
    return Settings(
        shapes=(*options.shapes, *filter(None, [options.task])) or Settings.shapes,
        dims=options.dims,
        only=tuple(options.only),
        baseline=options.baseline,
        profile=not options.no_profile,
        device=options.device,
        **{name: getattr(options, name) for name in NUMBERS},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    arguments = parser()
    options = arguments.parse_args(argv)
    if options.list:
        print(listing())
        return 0
    try:
        holds = run(settings_of(options), options.out, say=_progress)
    except SettingsError as error:
        arguments.error(str(error))
    return 0 if holds or not options.strict else 1


def _progress(message: str) -> None:
    """Progress on one line of the terminal; nothing where there is none."""
    if sys.stderr.isatty():
        print(f"\r\033[K{message}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
