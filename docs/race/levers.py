"""Levers that records of the field are made of, each by itself on an entry of the race.

    python docs/race/levers.py run --levers sharp brake --seeds 1 2     run what is not in the file
    python docs/race/levers.py table                                    what the runs say

A lever is some options of the optimizer, settings of the run, or a function that hooks into every
step. Nothing of the library knows of it, and a lever that pays can be given to Muon as it is. Each
run is compared with the run without the lever on the same seed, course and optimizer.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final

RESULTS: Final = Path(__file__).with_suffix(".json")
ENTRIES: Final = {"deva": "lean-fall", "muon": "muon-fall"}  # what a lever is added to
AVERAGES: Final = (15, 40, 100)  # steps that an average of the weights remembers
SHARES: Final = (0.5, 1.0)  # of the average in the weights that are read out


@dataclass(frozen=True)
class Lever:
    """What is changed.

    Attributes:
        about: What it is, in a line.
        options: Options of the optimizer, as `deva compare` takes them; {half} is half the rate.
        settings: Settings of the run.
        rate: What multiplies the learning rate of the entry.
        hook: What hooks into the steps of a run; it gets the run before its first step.
    """

    about: str
    options: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    rate: float = 1.0
    hook: Callable[[Any], None] | None = None


@dataclass(frozen=True)
class Job:
    """A run with a lever, on a course or at a place where entries of the sprint are confirmed."""

    course: str
    optimizer: str
    lever: str
    seed: int
    lr: float


# Schedules ----------------------------------------------------------------------------------------


def early_peak(run: Any) -> None:
    """Up to the peak in 3 %, there to 6 %, down as x^0.6 to a fifth at 56 %, a line to zero."""

    def share(x: float) -> float:
        if x < 0.06:
            return min(1.0, x / 0.03)
        if x < 0.56:
            return 1 - 0.8 * ((x - 0.06) / 0.5) ** 0.6
        return 0.2 * (1 - x) / 0.44

    def before(*_: Any) -> None:
        factor = share((run.progress.step + 1) / (run.settings.steps + 1))
        for group, rate in zip(run.optimizer.param_groups, run.rates, strict=True):
            group["lr"] = rate * factor

    run.optimizer.register_step_pre_hook(before)


def momentum_falls(run: Any) -> None:
    """β₁ of the matrices falls from 0.9 to 0.75."""

    def before(*_: Any) -> None:
        beta = 0.9 - 0.15 * run.progress.step / run.settings.steps
        for group in run.optimizer.param_groups:
            if group.get("role") != "matrix":
                continue
            if "momentum" in group:
                group["momentum"] = beta
            else:
                group["betas"] = (beta, *group["betas"][1:])

    run.optimizer.register_step_pre_hook(before)


# The direction ------------------------------------------------------------------------------------


def softness(share: float) -> None:
    """Make c² of the soft sign a share of what it is, with as many steps as that takes."""
    from deva_optim.core import directions

    directions.softness_of = lambda kind, n: share


def precise(run: Any) -> None:
    """More steps come closer to the root of the inverse: those that a hundredth of c² takes."""
    from deva_optim.core import directions

    fewest = directions.soft_quintics
    directions.soft_quintics = lambda n, softness: fewest(n, 0.01 * softness)


def loose(run: Any) -> None:
    """A tenth of c² with the steps of the soft sign, which are fewer than it takes."""
    from deva_optim.core import directions

    fewest = directions.soft_quintics
    directions.soft_quintics = lambda n, softness: fewest(n, 1.0)
    softness(0.1)


def sharpens(run: Any) -> None:
    """c² of the soft sign falls to zero over the first third; after it Newton–Schulz."""

    def before(*_: Any) -> None:
        left = 1 - round(100 * 3 * run.progress.step / run.settings.steps) / 100
        if left > 0:
            softness(left)
        else:
            for group in run.optimizer.param_groups:
                if "msign" in group:
                    group["msign"] = "newton-schulz"

    run.optimizer.register_step_pre_hook(before)


def two_scales(run: Any) -> None:
    """From a third of the run on the momentum is 0.44 EMA(0.65) + 0.56 EMA(0.92)."""
    import torch

    from deva_optim.core import step

    kept: dict[tuple[int, int], tuple[Any, Any]] = {}
    columns, momentum, lean = step.Columns, step.momentum_, step.lean_

    def mixed(b: Any) -> Any:
        found = []
        for item, G in zip(b.items, b.G, strict=True):
            fast, slow = kept.setdefault((id(item.param), b.index), (G * 0, G * 0))
            fast.lerp_(G, 1 - 0.65)
            slow.lerp_(G, 1 - 0.92)
            found.append(fast * 0.44 + slow * 0.56)
        begun = 3 * run.progress.step >= run.settings.steps
        return torch.stack(found) if begun else None

    def of_lean(b: Any) -> Any:
        D = mixed(b)
        if D is not None:
            D = D.mT if b.part.shape[-2] > b.part.shape[-1] else D
            step.Columns = lambda M, G, ahead, c: columns(D, D, 1.0, c)
        try:
            return lean(b)
        finally:
            step.Columns = columns

    def of_momentum(b: Any) -> Any:
        M, D = momentum(b)
        mix = mixed(b) if b.method.direction == "msign" else None
        return M, D if mix is None else mix

    step.lean_, step.momentum_ = of_lean, of_momentum


# Gradients and weights ----------------------------------------------------------------------------


def whitened_head(run: Any) -> None:
    """The head's G is mixed, at equal norms, with G (C + δ I)^(−½), C an average of Gᵀ G."""
    import torch

    head = run.model.head.weight
    C = torch.zeros(head.shape[1], head.shape[1])
    W = torch.eye(head.shape[1])

    def before(*_: Any) -> None:
        nonlocal W
        G = head.grad
        C.lerp_(G.T @ G, 0.05)
        if run.progress.step % 10 == 0:
            values, vectors = torch.linalg.eigh(C)
            W = vectors @ torch.diag((values + 0.01 * values.mean()).rsqrt()) @ vectors.T
        white = G @ W
        G.add_(white, alpha=float(G.norm() / white.norm())).mul_(0.5)

    run.optimizer.register_step_pre_hook(before)


def ahead(beta: float) -> Callable[[Any], None]:
    """θ ← A(θ + β m) and m ← EMA(0.95) of θ⁺ − θ, with β in proportion to the rate."""

    def hook(run: Any) -> None:
        import torch

        weights = list(run.model.parameters())
        last = [p.detach().clone() for p in weights]
        m = [torch.zeros_like(p) for p in last]

        @torch.no_grad()
        def after(*_: Any) -> None:
            factor = beta * run.settings.rate(run.progress.step)
            for p, theta, moved in zip(weights, last, m, strict=True):
                moved.lerp_(p - theta, 0.05)
                theta.copy_(p)
                p.add_(moved, alpha=factor)

        run.optimizer.register_step_post_hook(after)

    return hook


def brake(run: Any) -> None:
    """What an update adds to the length of a hidden matrix counts by half."""
    import torch

    groups = [g for g in run.optimizer.param_groups if g.get("role") == "matrix"]
    weights = [p for group in groups for p in group["params"]]
    last = [p.detach().clone() for p in weights]

    @torch.no_grad()
    def after(*_: Any) -> None:
        for p, theta in zip(weights, last, strict=True):
            outward = ((p - theta) * theta).sum((-2, -1), keepdim=True)
            share = outward.clamp_min(0) / theta.square().sum((-2, -1), keepdim=True).clamp_min(
                1e-30
            )
            p.sub_(theta * (0.5 * share))
            theta.copy_(p)

    run.optimizer.register_step_post_hook(after)


LEVERS: Final[Mapping[str, Lever]] = {
    "none": Lever("the entry as it is"),
    "line": Lever(
        "the rate falls over all steps, from 1.4 times the rate",
        settings={"decay": 1.0},
        rate=1.414,
    ),
    "early": Lever("an early peak of twice the rate, then a long tail", rate=2.0, hook=early_peak),
    "firm": Lever("the firm sign in place of the soft sign", "msign=firm"),
    "sharp": Lever("Newton–Schulz in place of the soft sign", "msign=newton-schulz"),
    "precise": Lever(
        "the soft sign by as many steps as a hundredth of c² takes",
        hook=precise,
    ),
    "third": Lever("0.3 of c²", hook=lambda run: softness(0.3)),
    "tenth": Lever("a tenth of c²", hook=lambda run: softness(0.1)),
    "loose": Lever("a tenth of c² by as many steps as the soft sign takes", hook=loose),
    "hundredth": Lever("a hundredth of c²", hook=lambda run: softness(0.01)),
    "sharpens": Lever("soft early, sharp late", hook=sharpens),
    "ahead": Lever("look ahead along the trajectory, β = 0.3", hook=ahead(0.3)),
    "back": Lever("look back along the trajectory, β = −0.2", hook=ahead(-0.2)),
    "scales": Lever("momentum of two time scales from a third on", hook=two_scales),
    "rest-slow": Lever("half the rate for embeddings, head and scalars", "rest_lr={half}"),
    "rest-betas": Lever("betas of the rest 0.8, 0.99", "rest_betas=0.8/0.99"),
    "decay-low": Lever("weight decay 0.03", "weight_decay=0.03"),
    "decay-high": Lever("weight decay 0.2", "weight_decay=0.2"),
    "head": Lever("whitened inputs of the head", hook=whitened_head),
    "brake": Lever("the outward part of an update by half", hook=brake),
    "momentum-falls": Lever("β₁ falls from 0.9 to 0.75", hook=momentum_falls),
    "horizon": Lever("β₂ = β₃ = 0.98", "betas=0.8/0.98/0.98"),
    "brief": Lever("β₂ = β₃ = 0.9", "betas=0.8/0.9/0.9"),
    "refresh": Lever("a new basis every fifth step", "refresh_every=5"),
}


# Runs ---------------------------------------------------------------------------------------------


def settings_of(job: Job) -> Any:
    """The run of a job."""
    from deva_lab.race.entries import COURSES, PLACES
    from deva_lab.run.entrants import Entrant

    lever, course = LEVERS[job.lever], COURSES.get(job.course, COURSES["sprint"])
    entry = course.entries[ENTRIES[job.optimizer]]
    run = entry.run(course.rules, round(job.lr * lever.rate, 5), job.seed)
    run = PLACES[job.course].changed(run, entry.length) if job.course in PLACES else run
    options = lever.options.format(half=round(job.lr / 2, 5))
    label = Entrant.parse(f"{run.optimizer},{options}").label
    return run.changed(optimizer=label, **lever.settings)


def carry_out(job: Job) -> dict[str, Any]:
    """Train, and return a line of results."""
    import torch

    from deva_lab.run.tasks import make_task
    from deva_lab.run.training import Run

    settings = settings_of(job)
    run = Run(settings, make_task(settings, lambda text: None))
    if hook := LEVERS[job.lever].hook:
        hook(run)
    weights = list(run.model.parameters())
    kept = {steps: [p.detach().clone() for p in weights] for steps in AVERAGES}
    batches = (run.task.batch(step) for step in range(settings.steps))
    while run.progress.status == "running":
        run.step(batches)
        with torch.no_grad():
            for steps, average in kept.items():
                torch._foreach_lerp_(average, weights, 1 / steps)
        if settings.evaluates(run.progress.step):
            run.evaluate()
    if run.progress.status == "diverged":
        raise RuntimeError(f"{job} has diverged; leave this lever out, or lower its rate")
    own, read = [p.detach().clone() for p in weights], {}
    for steps, average in kept.items():
        for share in SHARES:
            with torch.no_grad():
                torch._foreach_copy_(weights, torch._foreach_lerp(own, average, share))
            read[f"{steps}/{share}"] = round(run.task.validate(run.model)["loss"], 5)
    curve = {"step": run.progress.curve["step"]}
    curve["loss"] = [round(loss, 5) for loss in run.progress.curve["loss"]]
    return asdict(job) | {
        "settings": settings.saved(),
        "loss": curve["loss"][-1],
        "read": read,
        "curve": curve,
        "commit": run.environment["commit"],
    }


def results(path: Path) -> list[dict[str, Any]]:
    """The runs in the file."""
    return json.loads(path.read_text("utf-8")) if path.exists() else []


def main() -> None:
    """Do what the command line says."""
    from deva_lab.race.entries import COURSES, PLACES

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--course", default="sprint", choices=(*COURSES, *PLACES))
    parser.add_argument("--optimizer", default="deva", choices=ENTRIES)
    parser.add_argument("--levers", nargs="+", default=list(LEVERS), choices=LEVERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4])
    parser.add_argument("--lr", type=float, default=0.0141)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    known = results(given.results)
    if given.what == "table":
        print(f"{table(known)}\n\n{averages(known)}")
        return
    done = {tuple(row[key] for key in asdict(Job("", "", "", 0, 0))) for row in known}
    jobs = [
        Job(given.course, given.optimizer, lever, seed, given.lr)
        for seed in given.seeds
        for lever in given.levers
    ]
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    todo = [job for job in jobs if tuple(asdict(job).values()) not in done]
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=1) as pool:
        for row in pool.imap_unordered(carry_out, todo):
            known.append(row)
            lines = ",\n".join(map(json.dumps, known))  # a run a line
            given.results.write_text(f"[\n{lines}\n]\n", "utf-8")
            print(
                row["course"], row["optimizer"], row["lever"], row["seed"], row["loss"], flush=True
            )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Each lever beside the entry as it is, as Markdown, and how much noise a run has."""
    from scipy import stats

    lines = [("lever", "what it is", "course", "of", "seeds", "ends higher by"), ("---",) * 6]
    told = []
    for course in dict.fromkeys(row["course"] for row in rows):
        here = [row for row in rows if row["course"] == course]
        spread, free = noise(here)
        noted = f"{spread:.4f} on {course} ({free} degrees of freedom)"
        told.append(noted if free else f"not known on {course}")
        known = {(row["optimizer"], row["lever"], row["seed"]): row["loss"] for row in here}
        for optimizer, lever in dict.fromkeys(key[:2] for key in known):
            of = "deva" if lever == "none" else optimizer  # Muon itself is put beside DeVA
            gaps = [
                loss - known[of, "none", key[2]]
                for key, loss in known.items()
                if key[:2] == (optimizer, lever) and (of, "none", key[2]) in known
            ]
            if (optimizer, lever) == (of, "none") or not gaps:
                continue
            gap = f"{fmean(gaps):+.4f}"
            if free:
                half = stats.t.ppf(0.975, free) * spread * math.sqrt(2 / len(gaps))
                gap = f"{gap} ± {half:.4f}"
            name, about = (
                (lever, LEVERS[lever].about) if lever != "none" else (ENTRIES[optimizer], "")
            )
            lines.append((name, about, course, ENTRIES[of], str(len(gaps)), gap))
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{text}\n\nThe noise of a run is {', '.join(told)}."


def averages(rows: Sequence[Mapping[str, Any]]) -> str:
    """How much higher averages of the weights end on the sprint, as Markdown: mean and range."""
    rows = [row for row in rows if row["course"] == "sprint"]

    def cell(steps: int, share: float) -> str:
        gaps = [row["read"][f"{steps}/{share}"] - row["loss"] for row in rows]
        return f"{fmean(gaps):+.4f} ({min(gaps):+.4f} to {max(gaps):+.4f})"

    head = ("steps remembered", *(f"{share:.0%} of the average" for share in SHARES))
    lines = [(str(steps), *(cell(steps, share) for share in SHARES)) for steps in AVERAGES]
    lines = [head, ("---",) * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def noise(rows: Sequence[Mapping[str, Any]]) -> tuple[float, int]:
    """The standard deviation of what neither seed nor lever explains, and its degrees of freedom.

    The loss is a sum of both in the fit; a lever that has one seed says nothing of the noise.
    """
    import numpy as np

    levers = [(row["course"], row["optimizer"], row["lever"]) for row in rows]
    seeds = [(row["course"], row["optimizer"], row["seed"]) for row in rows]
    columns = [[key == one for key in keys] for keys in (levers, seeds) for one in set(keys)]
    design, losses = np.array(columns, float).T, np.array([row["loss"] for row in rows])
    fit, _, rank, _ = np.linalg.lstsq(design, losses, rcond=None)
    free = len(rows) - int(rank)
    left = float(np.sum((losses - design @ fit) ** 2))
    return (math.sqrt(left / free), free) if free else (math.nan, 0)


if __name__ == "__main__":
    main()
