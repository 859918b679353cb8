"""What `deva bench` takes: words for the benchmark, which reads them itself."""

from __future__ import annotations

from . import Commands


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        help="time, memory and FLOPs of a step",
        description="Measure a step of every optimizer; `deva bench step --help` has the options.",
        add_help=False,
        prefix_chars="\0",  # so that options are left for the benchmark to read
    )
    parser.add_argument("words_of_bench", nargs="*", metavar="…")
    parser.set_defaults(command="bench", needs=())
