"""The training loop: the same numbers every time, and from any checkpoint."""

import json
import math
import shutil

import pytest
import torch
from torch import nn

from deva_lab.errors import UsageError
from deva_lab.run import checkpoint, training
from deva_lab.run.entrants import Entrant
from deva_lab.run.environment import default_device, device_of
from deva_lab.run.plan import Request, plan
from deva_lab.run.progress import Event
from deva_lab.run.runner import in_turn, train
from deva_lab.run.tasks import make_task
from deva_lab.run.training import Run


def settings_of(optimizer="deva", **changes):
    request = Request((Entrant.parse(optimizer),), task="mlp", size="tiny", steps=12, batch=16)
    (settings,) = plan(request)
    return settings.changed(**{"evaluate_every": 5, **changes})


def result_of(settings, **options):
    return train(Run(settings, make_task(settings, lambda text: None)), **options)


def comparable(result):
    """A result without what differs from one time to the next."""
    curve = {key: value for key, value in result["curve"].items() if key != "seconds"}
    differs = {"curve": curve, "milliseconds": None, "mean_milliseconds": None}
    return {**result, **differs, "environment": None}


def test_a_run_learns_and_its_result_says_so():
    settings = settings_of(steps=60, evaluate_every=20, lr=0.01)
    events: list[Event] = []
    result = result_of(settings, watch=events.append, command="deva train")
    assert result["status"] == "finished"
    assert result["curve"]["step"] == [0, 20, 40, 60]
    assert result["curve"]["units"] == [0, 320, 640, 960]
    assert result["curve"]["loss"][-1] < 0.5 * result["curve"]["loss"][0]
    assert result["curve"]["train_loss"][0] is None
    assert [event.step for event in events if event.evaluated] == [0, 20, 40, 60]
    assert set(result["milliseconds"]) == {"model", "optimizer", "data"}
    json.dumps(result, allow_nan=False)


def test_the_same_settings_give_the_same_run_and_another_seed_another():
    a, b = result_of(settings_of()), result_of(settings_of())
    assert comparable(a) == comparable(b)
    assert result_of(settings_of(seed=1))["curve"]["loss"] != a["curve"]["loss"]


def test_an_average_of_the_weights_is_judged_and_changes_no_step():
    plain, averaged = (result_of(settings_of(x))["curve"] for x in ("deva", "deva:ema_rate=0.8"))
    assert averaged["train_loss"] == plain["train_loss"]
    assert averaged["loss"][0] == plain["loss"][0]  # where there is none yet
    assert all(x != y for x, y in zip(averaged["loss"][1:], plain["loss"][1:], strict=True))


@pytest.mark.parametrize(("available", "device"), [(True, "cuda"), (False, "cpu")])
def test_the_accelerator_is_asked_for_as_torch_2_6_has_it(available, device, monkeypatch):
    # Later versions know the argument check_available; there this one raises if none is available.
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: available)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    assert default_device() == device


def test_a_default_device_that_is_not_there_is_said_at_once(monkeypatch):
    monkeypatch.setenv("DEVA_DEVICE", "gpu")
    with pytest.raises(UsageError, match="the default device gpu cannot be used here"):
        device_of(None)
    assert device_of("cuda:9", elsewhere=True) == "cuda:9"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_run_follows_the_plain_one():
    plain, compiled = (result_of(settings_of("muon", compile=on))["curve"] for on in (False, True))
    # Fused kernels round otherwise, by 2⁻²⁴ at each of twelve steps, which the quintics of Muon may
    # magnify 3.4⁵ ≈ 500 times. A step moves the loss by a tenth of itself at the most: a margin of
    # 10.
    rounding = 12 * 500 * 2**-24
    assert compiled["loss"] == pytest.approx(plain["loss"], rel=rounding)
    assert compiled["train_loss"][1:] == pytest.approx(plain["train_loss"][1:], rel=rounding)


def test_every_optimizer_sees_the_same_start_and_the_same_batches():
    deva, muon = (result_of(settings_of(name)) for name in ("deva", "muon"))
    assert deva["curve"]["loss"][0] == muon["curve"]["loss"][0]
    tasks = [make_task(settings_of(name), lambda text: None) for name in ("deva", "muon")]
    for step in (0, 3, 50):
        assert all(map(torch.equal, tasks[0].batch(step), tasks[1].batch(step)))


@pytest.mark.parametrize("optimizer", ["deva", "soap", "splus", "adamw"])
@pytest.mark.parametrize("cut", [1, 5, 8])  # before, at and after an evaluation
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, optimizer, cut):
    settings = settings_of(optimizer, clip=1.0, accumulate=2)
    whole = result_of(settings)
    seen: list[int] = []

    def stopping() -> bool:
        seen.append(1)
        return len(seen) >= cut

    first = result_of(settings, folder=tmp_path, stopping=stopping)
    assert (first["status"], first["step"]) == ("stopped", cut)
    rest = result_of(settings, folder=tmp_path)
    assert comparable(rest) == comparable(whole)


def test_weights_after_a_resume_are_those_of_the_whole_run(tmp_path):
    settings = settings_of()
    task = make_task(settings, lambda text: None)
    result_of(settings, folder=tmp_path / "whole")
    steps = iter(range(1, 13))
    stopped = result_of(settings, folder=tmp_path / "cut", stopping=lambda: next(steps) == 7)
    assert stopped["status"] == "stopped"
    run = Run(settings, task)
    checkpoint.load(tmp_path / "cut", run)
    assert run.progress.step == 7
    result_of(settings, folder=tmp_path / "cut")
    ends = [Run(settings, task), Run(settings, task)]
    for end, name in zip(ends, ("whole", "cut"), strict=True):
        checkpoint.load(tmp_path / name, end)
    a, b = (dict(end.model.named_parameters()) for end in ends)
    assert all(torch.equal(weight, b[name]) for name, weight in a.items())


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path):
    settings = settings_of()
    result_of(settings, folder=tmp_path, save_steps=5)
    newest, older = checkpoint.found(tmp_path)
    newest.write_bytes(newest.read_bytes()[:-200])
    run, said = Run(settings, make_task(settings, lambda text: None)), list[str]()
    checkpoint.load(tmp_path, run, said.append)
    assert run.progress.step == 10
    assert f"{newest} is damaged" in said[0]
    older.write_bytes(b"")
    with pytest.raises(UsageError, match="no checkpoint .* can be read"):
        checkpoint.load(tmp_path, run)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    result_of(settings_of(), folder=tmp_path, save_steps=5)
    with pytest.raises(UsageError, match="another run"):
        result_of(settings_of(lr=0.5), folder=tmp_path)


@pytest.mark.filterwarnings("ignore:.*not finite")
def test_divergence_is_reported_and_ends_the_run():
    result = result_of(settings_of("signum:weight_decay=0", lr=1e30, steps=50))
    assert result["status"] == "diverged"
    assert result["curve"]["step"][-1] < 50
    json.dumps(result, allow_nan=False)


def test_accumulation_is_a_larger_batch():
    """Two batches a step are as one of twice the size, up to the rounding of the sum."""
    double = settings_of("adamw", accumulate=2, steps=1)
    task = make_task(double, lambda text: None)
    halves = [(images.double(), labels) for images, labels in map(task.batch, (0, 1))]
    both = tuple(torch.cat(pair) for pair in zip(*halves, strict=True))
    run, whole = Run(double, task), Run(double.changed(accumulate=1), task)
    for each in (run, whole):  # in float64, as Adam divides what it is given by its size
        each.model.double()
    run.step(iter(halves))
    whole.step(iter([both]))
    # Adam's first step is lr · g / (|g| + ε). A gradient is a sum over 32 images of numbers of
    # order one, off by 32 · 2⁻⁵³, which weighs most where g is far below ε. The margin is 16.
    atol = 16 * double.lr * 32 * 2**-53 / 1e-8
    for a, b in zip(run.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)


def test_schedule_rises_stays_and_falls():
    settings = settings_of(steps=100, warmup=0.1, decay=0.4)
    rates = [settings.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9:61] == [1.0] * 52
    assert rates[60:] == pytest.approx([(100 - step) / 40 for step in range(60, 100)])


def test_the_steps_of_an_accelerator_that_are_timed_are_those_that_were_waited_for(monkeypatch):
    settings = settings_of("adamw", steps=30)
    run = Run(settings, make_task(settings, report=lambda text: None))
    run.settings = settings.changed(device="cuda")
    waited: list[int] = []
    monkeypatch.setattr(training, "wait", lambda device: waited.append(run.progress.step))
    monkeypatch.setattr(run, "loss", lambda batch: run.task.loss(run.model, batch))
    with in_turn(run.task.batch, start=0, ahead=False) as batches:
        for _ in range(21):
            kept = len(run.progress.times["model"])
            run.step(batches)
            timed = len(run.progress.times["model"]) > kept
            assert timed is (run.progress.step - 1 in waited)
    assert set(waited) == {0, 10, 20}


def test_bfloat16_products_train():
    loss = result_of(settings_of(dtype="bfloat16"))["curve"]["loss"]
    assert all(math.isfinite(value) for value in loss)


def test_plan_is_every_optimizer_at_every_rate_with_every_seed():
    request = Request(
        (Entrant.parse("deva"), Entrant.parse("muon:lr=0.5")),
        task="mlp",
        rates=("0.1", "x2"),
        seeds=(0, 1),
    )
    runs = plan(request)
    usual = Entrant.parse("deva").default_lr
    rates = {(run.optimizer, run.lr, run.seed) for run in runs}
    assert rates == {
        (name, lr, seed)
        for seed in (0, 1)
        for name, lr in (("deva", 0.1), ("deva", 2 * usual), ("muon", 0.5))
    }
    assert len({run.id for run in runs}) == len(runs) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "gtp"}, "unknown task 'gtp', did you mean 'gpt'"),
        ({"size": "smal"}, "did you mean 'small'"),
        ({"steps": 0}, "--steps must be at least 1, got 0"),
        ({"steps": 781.25}, "--steps must be a whole number, at least 1, got 781.25"),
        ({"evaluate_every": 0}, "--evaluate-every must be at least 1, got 0"),
        ({"decay": 1.5}, "--decay"),
        ({"clip": -1.0}, "--clip"),
        ({"data": "digit"}, "digits"),
    ],
)
def test_bad_requests_are_refused_at_once(change, message):
    with pytest.raises(UsageError, match=message):
        plan(Request((Entrant.parse("deva"),), **{"task": "mlp", **change}))


def test_quadratic_has_the_paper_s_hessian():
    from deva_lab.quadratic import SIZES, Quadratic, hessian

    for size, blocks in SIZES.items():
        H = hessian(size, seed=3)
        wanted = torch.tensor(sorted(x for block in blocks for x in block), dtype=torch.double)
        torch.testing.assert_close(torch.linalg.eigvalsh(H), wanted)
        task = Quadratic(size, seed=3, batch=9)
        model = task.model()
        assert isinstance(model.weight, nn.Parameter)
        X = model.weight.detach().double()
        value = 0.5 * (X.mT @ H @ X).trace()
        # A and its products with X are float32: nine terms and a square; the margin is 8.
        rounding = 8 * 2 * 10 * 2**-24
        assert task.validate(model)["loss"] == pytest.approx(value.item(), rel=rounding)
        samples = [task.loss(model, task.batch(step)).item() for step in range(400)]
        spread = torch.tensor(samples).std().item() / 20
        assert abs(sum(samples) / 400 - value) < 4 * spread  # unbiased


def test_a_vocabulary_is_the_same_run_as_a_number_and_as_a_text():
    optimizers = (Entrant.parse("adamw"),)
    runs = [plan(Request(optimizers, size="tiny", vocabulary=size)) for size in (512, "512")]
    assert runs[0] == runs[1]
    with pytest.raises(UsageError, match="vocabulary must be at least 256.*got '12'"):
        plan(Request(optimizers, vocabulary="12"))
