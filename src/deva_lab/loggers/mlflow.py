"""Runs in MLflow."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..errors import UsageError
from ..extras import require
from ..files import write_record
from ..results import Outcome, Values
from .subject import PROJECT, Subject, kept_record

_STATUS: Final = {"finished": "FINISHED", "stopped": "KILLED"}
_BATCH: Final = 1000  # metrics of a call, at most


def check() -> None:
    """Raises MissingExtra if it is not installed, or its store on this machine is not."""
    for module in ("mlflow", "sqlalchemy", "alembic"):
        require(module)


def prepare(folder: Path) -> None:
    """Make the store and the experiment, which all runs share.

    Raises:
        UsageError: If the store cannot be reached.
    """
    try:
        _experiment(_client(folder))
    except Exception as error:  # of any kind: requests', SQLAlchemy's, MLflow's
        raise UsageError(f"--log mlflow: {str(error).splitlines()[0]}") from error


class MLflow:
    """A run of MLflow, in the store that MLFLOW_TRACKING_URI names or in a file of the folder."""

    def __init__(self, subject: Subject) -> None:
        self._client = _client(subject.folder)
        path = subject.kept / "mlflow.json"
        self._run = str(kept_record(path).get("run_id", ""))
        if not (self._run and self._goes_on()):
            self._run = self._begin(subject)
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

    def _begin(self, subject: Subject) -> str:
        from mlflow.entities import Param

        tags = {"comparison": subject.group, **_flat(subject.about)}
        experiment = _experiment(self._client)
        run = self._client.create_run(experiment, tags=tags, run_name=subject.id)
        params = [Param(name, value) for name, value in _flat(subject.settings).items()]
        self._client.log_batch(run.info.run_id, params=params)
        return str(run.info.run_id)

    def add(self, step: int, values: Values) -> None:
        """Send a point."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        # The one that tells what is there comes last: a point that a kill has cut is sent again.
        names = sorted(values, key=lambda name: name == "seconds")
        metrics = [Metric(_plain(name), values[name], now, step) for name in names]
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


def _client(folder: Path) -> Any:
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # else it tries for minutes
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    from mlflow import MlflowClient

    local = f"sqlite:///{(folder.resolve() / 'mlflow.db').as_posix()}"
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        folder.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or local)


def _experiment(client: Any) -> str:
    """The id of the experiment, which is made if it is not there."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
    found = client.get_experiment_by_name(name)
    return str(client.create_experiment(name) if found is None else found.experiment_id)


def _plain(name: str) -> str:
    """A name with nothing in it that MLflow refuses."""
    return re.sub(r"[^\w\-. /]", "_", name)


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
