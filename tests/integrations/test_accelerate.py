"""Accelerate: the optimizer inside its wrapper, clipping, accumulation and telemetry."""

from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("accelerate")
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, on_main_process

from deva_optim import DeVA
from deva_optim.integrations.accelerate import clip_grad_norm_, log_telemetry, unwrap

pytestmark = pytest.mark.filterwarnings("ignore")  # what other projects warn about is theirs


class Tracker(GeneralTracker):
    """Keeps what it is given to log."""

    name, requires_logging_directory, tracker = "kept", False, None

    @on_main_process
    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, dict[str, float]] = {}

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        pass

    @on_main_process
    def log(self, values: dict[str, float], step: int, **_: Any) -> None:
        self.rows[step] = values


def prepared(accumulate: int, tracker: Tracker | None = None) -> tuple[Accelerator, Any, Any, DeVA]:
    """An accelerator, a model and its wrapped optimizer, and the optimizer itself."""
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=accumulate, log_with=tracker or []
    )
    accelerator.init_trackers("test")
    inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    ours = DeVA(inner, lr=0.01)
    model, optimizer = accelerator.prepare(inner, ours)
    return accelerator, model, optimizer, ours


def test_the_optimizer_is_found_in_its_wrapper() -> None:
    _, _, wrapped, ours = prepared(1)
    assert wrapped is not ours
    assert unwrap(wrapped) is ours
    assert unwrap(ours) is ours
    with pytest.raises(TypeError, match="one of deva_optim, or a wrapper around one, got a SGD"):
        unwrap(torch.optim.SGD([nn.Parameter(torch.ones(2))]))


def test_groups_are_clipped_by_their_own_norms_when_a_step_is_due() -> None:
    accelerator, model, wrapped, ours = prepared(2)
    found = []
    for _ in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(100 * model(torch.randn(8, 4)).square().sum())
            found.append(clip_grad_norm_(accelerator, wrapped, 0.5))
    first, second = found
    assert first == []  # gradients are still being added up
    assert len(second) == len(ours.param_groups)
    assert min(second) > 0.5
    for group in ours.param_groups:
        norm = torch.stack([p.grad.norm() for p in group["params"]]).norm()
        torch.testing.assert_close(norm, torch.tensor(0.5))


def test_telemetry_is_logged_fresh() -> None:
    tracker = Tracker()
    accelerator, model, wrapped, ours = prepared(2, tracker)
    returned, step = [], 0
    for _ in range(8):  # four steps
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.randn(8, 4)).square().sum())
            wrapped.step()
            wrapped.zero_grad()
            step += accelerator.sync_gradients
            returned.append(log_telemetry(accelerator, wrapped, step, every=2))
    assert list(tracker.rows) == [2, 4]
    assert [row for row in returned if row] == list(tracker.rows.values())
    second, fourth = tracker.rows.values()
    for name in ("0.weight", "1.weight"):
        assert second[f"update_ratio/{name}"] != fourth[f"update_ratio/{name}"]
    now = ours.telemetry()
    assert fourth["update_ratio/1.weight"] == now["1.weight"]["update_ratio"]
    with pytest.raises(ValueError, match="every must be a whole number of at least 1, got 0"):
        log_telemetry(accelerator, wrapped, step, every=0)
