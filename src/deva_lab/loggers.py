"""Runs in TensorBoard, Weights & Biases and MLflow, each of which is imported when it is asked for.

A run logs from its own process. One that is resumed goes on in the same run of the tracker, whose
id is kept beside the checkpoints, and logs no step that is there already. A tracker that fails is
given up with a warning, and the training goes on.

Each tracker is a class. An object of it is a run in the tracker, whose `last` is the last step that
it had when it was opened, −1 if none. `add` logs a point, so that a kill after it does not lose the
point, and `end` logs how the run ended and closes it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from .errors import UsageError, require, unknown, warn
from .files import read_record, write_record
from .run.progress import Point, Result
from .run.settings import LOGGERS

NONE: Final = "none"  # what `--log` says for no logger
PROJECT: Final = "deva"  # of W&B, and experiment of MLflow, unless the environment names another
Values: TypeAlias = Mapping[str, float]
Outcome: TypeAlias = dict[str, float | str]


class Subject(NamedTuple):
    """A run, as a logger is told of it."""

    id: str
    folder: Path  # of the comparison, whose name all of its runs share
    settings: Mapping[str, Any]
    about: Mapping[str, Any]  # command, environment

    @property
    def group(self) -> str:
        """The name of the comparison."""
        return self.folder.resolve().name

    def kept(self, name: str) -> Path:
        """Where a logger writes down of itself what it needs to go on: beside the checkpoints."""
        return self.folder / "runs" / self.id / name


# --- TensorBoard ----------------------------------------------------------------------------------


class TensorBoard:
    """A run in a folder that TensorBoard reads."""

    def __init__(self, subject: Subject) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        folder = subject.folder / "tensorboard" / subject.id
        self.last = max(_steps_of(folder), default=-1) if folder.is_dir() else -1
        self._writer = SummaryWriter(str(folder))
        if self.last < 0:
            about = {"settings": subject.settings, **subject.about, "comparison": subject.group}
            for name, value in about.items():
                self._writer.add_text(name, _code(value), 0)

    def add(self, step: int, values: Values) -> None:
        """Write a point."""
        for name, value in sorted(values.items(), key=lambda item: item[0] == "seconds"):
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self, status: str, outcome: Outcome) -> None:
        """Write how it ended."""
        if outcome:
            self._writer.add_text("result", _code(outcome), int(outcome["result/step"]))
        self._writer.close()


def _steps_of(folder: Path) -> list[int]:
    """The steps that a folder of TensorBoard has points of."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), {"scalars": 0, "tensors": 1})  # all of the scalars
    events.Reload()
    known = "seconds" in events.Tags()["scalars"]
    return [event.step for event in events.Scalars("seconds")] if known else []


def _code(value: Any) -> str:
    """JSON, indented as Markdown shows it as it stands."""
    return "\n".join(f"    {line}" for line in json.dumps(value, indent=1).splitlines())


# --- Weights & Biases -----------------------------------------------------------------------------

# In seconds: how often an offline run is written, and how long to wait for a server at the end,
# after which `wandb sync` sends the rest.
_WANDB: Final = {
    "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": "1",
    "WANDB_FINISH_TIMEOUT": "60",
    "WANDB_FINISH_TIMEOUT_RAISES": "true",
}


class WandB:
    """A run of Weights & Biases; offline each life of it is a folder, which `wandb sync` joins."""

    def __init__(self, subject: Subject) -> None:
        import wandb

        for name, value in _WANDB.items():
            os.environ.setdefault(name, value)
        path = subject.kept("wandb.json")
        id_ = str((read_record(path) or {}).get("id") or secrets.token_hex(4))
        write_record(path, {"id": id_})
        folder = Path(os.environ.get("WANDB_DIR") or subject.folder)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            group=os.environ.get("WANDB_RUN_GROUP") or subject.group,
            name=subject.id,
            id=id_,
            resume="allow",
            dir=folder,
            config={**subject.settings, **subject.about},
            allow_val_change=True,
            settings=wandb.Settings(silent=True, console="off"),
        )
        # Online the server knows. Offline the files do: what a kill has kept out of them is lost.
        self.last = max([int(self._run.step) - 1, *steps_in(folder, id_)])

    def add(self, step: int, values: Values) -> None:
        """Send a point."""
        self._run.log(dict(values), step=step, commit=True)

    def end(self, status: str, outcome: Outcome) -> None:
        """Send how it ended."""
        self._run.summary.update(dict(outcome))
        self._run.finish(exit_code=0 if status == "finished" else 1)


BLOCK: Final = 1 << 15
HEAD: Final = 7  # bytes, of a file and of a piece
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def files_of(folder: Path, id_: str = "*") -> list[Path]:
    """The files of all lives of a run, the first one first."""
    return sorted(folder.glob(f"wandb/offline-run-*-{id_}/run-{id_}.wandb"))


def steps_in(folder: Path, id_: str) -> set[int]:
    """The steps that the files of a run have."""
    rows = (
        row
        for path in files_of(folder, id_)
        for record in records(path)
        for row in record.history.item
        if record.WhichOneof("record_type") == "history"
    )
    return {int(json.loads(row.value_json)) for row in rows if name_of(row) == "_step"}


def name_of(item: Any) -> str:
    """The name of a value."""
    return item.key or "/".join(item.nested_key)


def records(path: Path) -> Iterator[Any]:
    """The messages of a file that W&B has written offline, up to where a kill has cut it off."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2  # which are made at run time
    for data in _whole(path.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        yield record


def _whole(data: bytes) -> Iterator[bytes]:
    """The records of a file, which has a head of seven bytes, and then blocks of 32 kB.

    A record is in one piece or cut at the ends of blocks; each piece has a checksum, its length and
    what it is of the record.
    """
    place, record = HEAD, b""
    while place + HEAD <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEAD:  # too little for a piece
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEAD])
        end = place + HEAD + length
        if kind not in (FULL, FIRST, MIDDLE, LAST) or end > len(data):
            return
        part = data[place + HEAD : end]
        record = part if kind in (FULL, FIRST) else record + part
        place = end
        if kind in (FULL, LAST):
            yield record


# --- MLflow ---------------------------------------------------------------------------------------

_STATUS: Final = {"finished": "FINISHED", "stopped": "KILLED"}
_BATCH: Final = 1000  # metrics of a call, at most
_REFUSED: Final = re.compile(r"[^\w\-. /]")  # in the name of a metric


class MLflow:
    """A run of MLflow, in the store that MLFLOW_TRACKING_URI names or in a file of the folder."""

    def __init__(self, subject: Subject) -> None:
        from mlflow.entities import Param

        self._client, experiment = _store(subject.folder)
        path = subject.kept("mlflow.json")
        self._run = str((read_record(path) or {}).get("run_id", ""))
        if not (self._run and self._goes_on()):
            tags = {"comparison": subject.group, **_flat(subject.about)}
            run = self._client.create_run(experiment, tags=tags, run_name=subject.id)
            self._run = str(run.info.run_id)
            params = [Param(name, value) for name, value in _flat(subject.settings).items()]
            self._client.log_batch(self._run, params=params)
            write_record(path, {"run_id": self._run})
        history = self._client.get_metric_history(self._run, "seconds")
        self.last = max((metric.step for metric in history), default=-1)

    def _goes_on(self) -> bool:
        """Take the run of before up again, if the store has it."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.update_run(self._run, status="RUNNING")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        return True

    def add(self, step: int, values: Values) -> None:
        """Send a point."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        # The one that tells what is there comes last: a point that a kill has cut is sent again.
        names = sorted(values, key=lambda name: name == "seconds")
        metrics = [Metric(_REFUSED.sub("_", name), values[name], now, step) for name in names]
        for first in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._run, metrics=metrics[first : first + _BATCH])

    def end(self, status: str, outcome: Outcome) -> None:
        """Send how it ended."""
        from mlflow.entities import Metric, RunTag

        now, step = int(1000 * time.time()), int(outcome.get("result/step", 0))
        numbers = {k: x for k, x in outcome.items() if not isinstance(x, str)}
        self._client.log_batch(
            self._run,
            metrics=[Metric(name, float(x), now, step) for name, x in numbers.items()],
            tags=[RunTag(k, x) for k, x in outcome.items() if isinstance(x, str)],
        )
        self._client.set_terminated(self._run, status=_STATUS.get(status, "FAILED"))


def _store(folder: Path) -> tuple[Any, str]:
    """A client of the store, and the id of the experiment, which is made if it is not there."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # else it tries for minutes
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    from mlflow import MlflowClient

    place = os.environ.get("MLFLOW_TRACKING_URI")
    if not place:
        folder.mkdir(parents=True, exist_ok=True)
        place = f"sqlite:///{(folder.resolve() / 'mlflow.db').as_posix()}"
    client, name = MlflowClient(place), os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
    found = client.get_experiment_by_name(name)
    return client, str(client.create_experiment(name) if found is None else found.experiment_id)


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Texts by name, those of a record within the record behind its name.

    >>> _flat({"lr": 0.1, "environment": {"cores": 2}})
    {'lr': '0.1', 'environment.cores': '2'}
    """
    found: dict[str, str] = {}
    for name, value in values.items():
        nested = isinstance(value, Mapping)
        found |= _flat(value, f"{before}{name}.") if nested else {before + name: str(value)}
    return found


Logger: TypeAlias = TensorBoard | WandB | MLflow
TRACKERS: Final[Mapping[str, type[Logger]]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


# --- All of them ----------------------------------------------------------------------------------


class Log:
    """All loggers of a run; a context that ends them if the run fails.

    Args:
        names: Those of `LOGGERS` that are wanted.
        folder: That of the comparison.
        logs: Whether this process logs; of several ranks one does.
    """

    def __init__(
        self, names: Sequence[str] = (), folder: Path = Path(), *, logs: bool = True
    ) -> None:
        self.wanted = bool(names)
        self._names, self.folder = (names if logs else ()), folder
        self._loggers: dict[str, Logger] = {}

    def begin(self, subject: Subject, known: Iterable[Point]) -> None:
        """Open all loggers, and give each the points of a resumed run that it does not have."""
        for name in self._names:
            self._try(name, partial(self._open, name, subject))
        for point in known:
            self.add(point)

    def _open(self, name: str, subject: Subject) -> None:
        self._loggers[name] = TRACKERS[name](subject)

    def add(self, point: Point) -> None:
        """Log a point wherever it is not known yet."""
        for name, logger in list(self._loggers.items()):
            if point.step > logger.last:
                self._try(name, partial(logger.add, *point))

    def end(self, status: str, outcome: Outcome) -> None:
        """Log how the run ended, and close all."""
        for name, logger in list(self._loggers.items()):
            self._try(name, partial(logger.end, status, outcome))
        self._loggers.clear()

    def _try(self, name: str, do: Callable[[], None]) -> None:
        """Do it; whatever is raised costs the logger and not the run."""
        try:
            do()
        except Exception as error:
            self._loggers.pop(name, None)
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            warn(f"{name} has failed, and the run goes on without it: {reason}")

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, Exception):  # a second Ctrl-C waits for nothing
            self.end("failed", {})  # of none, if the run has come to its end


def names_of(text: str | None) -> tuple[str, ...]:
    """The loggers that a list names, each once.

    >>> names_of("wandb,tensorboard"), names_of("none")
    (('wandb', 'tensorboard'), ())
    """
    names = [name for name in (text or "").lower().replace(" ", "").split(",") if name]
    names = [] if names == [NONE] else names
    for name in names:
        if name not in LOGGERS:
            raise unknown("logger", name, (*LOGGERS, NONE))
    return tuple(dict.fromkeys(names))


def check_loggers(names: Sequence[str]) -> None:
    """Raises UsageError for one that is not installed, or that nobody has logged in to."""
    for name in names:
        require(name)
    if "wandb" in names and os.environ.get("WANDB_MODE", "online") == "online":
        import wandb

        try:
            wandb.login()
        except Exception as error:
            reason = str(error).splitlines()[0]
            remedy = "Without a login, set WANDB_MODE=offline"
            raise UsageError(f"--log wandb: {reason} {remedy}") from error


def prepare_loggers(names: Sequence[str], folder: Path) -> None:
    """Make what all runs share, before any of them begins; UsageError if that fails."""
    if "mlflow" in names:
        try:
            _store(folder)
        except Exception as error:  # of any kind: requests', SQLAlchemy's, MLflow's
            raise UsageError(f"--log mlflow: {str(error).splitlines()[0]}") from error


def outcome(result: Result) -> Outcome:
    """How a run ended, from its line of results.jsonl."""
    columns = result["curve"].items()
    found = {
        **{name: column[-1] for name, column in columns if column and name != "units"},
        **{key: result[key] for key in ("status", "step", "parameters")},
        **{key: result[key] for key in ("state_bytes", "peak_memory_bytes")},
        result["unit"]: result["step"] * result["units"],
    }
    for kind in ("milliseconds", "mean_milliseconds"):
        found |= {f"{kind}/{part}": time for part, time in result[kind].items()}
    return {f"result/{name}": value for name, value in found.items() if value is not None}
