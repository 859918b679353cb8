"""`deva compare` from Python, in a script or a notebook."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .errors import UsageError
from .launchers import carry_out, check_jobs, ended
from .render.display import Display, display
from .render.pages import Comparison
from .run.entrants import entrants
from .run.environment import device_of, seeded
from .run.plan import Request, as_begun, check_baseline, plan
from .run.runner import Orders, Stopping
from .run.settings import DType
from .run.user_source import is_object, of_object

COMMAND = "deva_lab.compare(…)"  # which results have in the place of a command line


def compare(
    task: Any,
    optimizers: str | Iterable[str] = ("deva", "adamw"),
    *,
    lr: float | str | Iterable[float | str] = (),
    seeds: int | Iterable[int] = 1,
    steps: int | None = None,
    batch: int | None = None,
    size: str | None = None,
    data: str | None = None,
    vocabulary: int | str | None = None,
    accumulate: int = 1,
    warmup: float = 0.0,
    decay: float = 0.4,
    clip: float = 0.0,
    evaluate_every: int | None = None,
    device: str | None = None,
    dtype: DType = "float32",
    compile: bool = False,
    telemetry: int | None = None,
    jobs: int | None = None,
    out: str | Path | None = None,
    baseline: str | None = None,
    progress: bool = True,
) -> Comparison:
    """The comparison of some optimizers on a task, from the same weights on the same batches.

    Args:
        task: The path of a file ("my_task.py"), "package.module:Task", a task of the laboratory
            ("gpt"), or a class, an object or a module with the functions model, batch, loss and
            validate.
        optimizers: Their names, with settings if you like: "deva", "muon:nesterov=true".
        lr: Learning rates for all, or multiples of the usual one of each, as in "x0.5".
        seeds: How many, or which.
        steps: Of a run; as the task has it unless given.
        batch: Samples in a batch; as the task has it unless given.
        size: Of a task of the laboratory.
        data: Of a task of the laboratory.
        vocabulary: Of a task of the laboratory.
        accumulate: Batches in a step.
        warmup: The share of the steps in which the rate rises.
        decay: The share of the steps in which it falls to zero.
        clip: The greatest norm of the gradient; 0 does not clip.
        evaluate_every: Steps; a tenth of all unless given.
        device: The accelerator unless given, if there is one.
        dtype: Of products.
        compile: Whether to compile the model.
        telemetry: Keep what the optimizers did every so many steps, for the report.
        jobs: Runs side by side; as cores allow unless given. A class or an object is trained in
            this process, one run after the other.
        out: A folder that keeps the runs: those that it has results of are not carried out again.
        baseline: The optimizer whose final loss is the target; AdamW unless given.
        progress: Whether to print how the runs go on.

    Raises:
        UsageError: If something does not exist or does not fit, before anything is trained. A run
            that fails is a row of the comparison instead.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            'put the call of compare under `if __name__ == "__main__":`, as processes that train '
            "side by side import the script, or give jobs=1"
        )
    device = device_of(device)
    lr = lr.split(",") if isinstance(lr, str) else lr
    rates = lr if isinstance(lr, Iterable) else [lr]
    shown = display() if progress else Display()
    with seeded(0, device):  # and what the caller draws at random goes on afterwards
        request = Request(
            optimizers=tuple(entrants(optimizers)),
            task=str(task) if isinstance(task, str | Path) else of_object(task),
            rates=tuple(map(str, rates)),
            seeds=tuple(seeds if isinstance(seeds, Iterable) else range(seeds)),
            steps=steps,
            batch=batch,
            size=size,
            data=data,
            vocabulary=vocabulary,
            accumulate=accumulate,
            warmup=warmup,
            decay=decay,
            clip=clip,
            evaluate_every=evaluate_every,
            device=device,
            dtype=dtype,
            compile=compile,
            telemetry=telemetry,
        )
        runs = plan(request)
        check_baseline(baseline, runs)
        check_jobs(jobs)
        if is_object(runs[0].task_place):
            if jobs is not None and jobs > 1:
                raise UsageError(
                    f"jobs={jobs}: other processes cannot import a class or an object of this one; "
                    "give the path of a file, or leave jobs out"
                )
            jobs = 1
        folder = Path(tempfile.mkdtemp(prefix="deva-") if out is None else out).expanduser()
        runs, orders = as_begun(runs, folder, shown.say), Orders(folder, COMMAND)
        with Stopping() as stopping:
            failed = carry_out(runs, orders, jobs=jobs, shown=shown, stopping=stopping)
        results = ended(folder, runs)
    if out is None and not failed:  # whose tracebacks the user may want to read
        shutil.rmtree(folder)
    if stopping() and not results:
        raise KeyboardInterrupt
    return Comparison(results, baseline=baseline)
