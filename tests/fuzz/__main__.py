"""The command: `python -m fuzz --cases 10000 --seconds 600 --seed 0 --jobs 2`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from fuzz import case_of, fault_of, shrunk
from fuzz.pool import results


def main(argv: list[str] | None = None) -> int:
    """Run cases and print faults; returns 1 if there are any."""
    args = _arguments(argv)
    start, done = time.monotonic(), 0
    kinds: Counter[tuple[str, str]] = Counter()
    for count, found in results(args.seed, args.cases, args.seconds, args.jobs):
        done += count
        for seed, invariant, words in found:
            kind = invariant, case_of(seed).optimizer
            kinds[kind] += 1
            if kinds[kind] == 1:  # later ones of the same kind are counted
                _show(seed, invariant, words, shrink=args.shrink)
        if sys.stderr.isatty():
            rate = done / (time.monotonic() - start)
            print(
                f"\r{done} cases, {sum(kinds.values())} faults, {rate:.0f}/s",
                end="",
                file=sys.stderr,
            )
    rate = done / (time.monotonic() - start)
    print(
        f"{done} cases from seed {args.seed} on, {rate:.0f} a second: {sum(kinds.values())} faults"
    )
    for (invariant, optimizer), count in sorted(kinds.items()):
        print(f"{count:6d}  {invariant}, {optimizer}")
    return 1 if kinds else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, help="how many; 2000, unless --seconds is given")
    parser.add_argument("--seconds", type=float, help="how long, at the most")
    parser.add_argument("--seed", type=int, default=0, help="the first; every case adds one")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="show cases whole")
    args = parser.parse_args(argv)
    if args.cases is None and args.seconds is None:
        args.cases = 2000
    return args


def _show(seed: int, invariant: str, words: str, *, shrink: bool) -> None:
    case = case_of(seed)
    if shrink:
        case = shrunk(case, invariant)
        words = str(fault_of(case))
    print(f"seed {seed}: {words}\n    from fuzz import *\n    run({case!r})\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
