"""The contract that every optimizer keeps, whatever it computes; `OPTIMIZERS` is the one table.

Two runs whose arithmetic is the same agree bit for bit (`same`). Where it is batched or laid out in
another way they agree to the rounding of float64 (`close`), with `sides="short"`: on the long side
of a rectangle the first covariance is singular, and rounding alone picks a basis of its null space.
"""

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.testing import assert_close

import deva_optim as do
from deva_optim import engine
from deva_optim.methods import method_of
from optimizers import MATRIX, OPTIMIZERS

Params = list[nn.Parameter]
History = list[list[Tensor | None]]  # the gradients of each step

# Without staggering, a parameter moves as it would in an optimizer of its own.
OPTIONS: dict[str, Any] = {
    "lr": 2**-6, "weight_decay": 0.125, "refresh_every": 2, "stagger": False,
}  # fmt: skip
SHAPES = ((), (5,), (4, 4), (3, 5), (5, 3), (1, 4), (4, 1), (2, 3, 4), (4, 2, 3, 3))
AS_MATRIX = {"role": "matrix", "sides": "short"}
HALF = (torch.bfloat16, torch.float16)


def build(name: str, params: Any, **options: Any) -> Optimizer:
    """An optimizer of one group, which takes options that its constructor does not have."""
    return OPTIMIZERS[name]([{"params": list(params), **OPTIONS, **options}])


def parameters(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Params:
    return [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]


def clones(params: Params) -> Params:
    return [nn.Parameter(p.detach().clone()) for p in params]


def gradients(params: Params, steps: int) -> History:
    return [[torch.randn_like(p) for p in params] for _ in range(steps)]


def zeros(params: Params, steps: int) -> History:
    return [[torch.zeros_like(p) for p in params] for _ in range(steps)]


def advance(optimizer: Optimizer, params: Params, history: History) -> None:
    for grads in history:
        for p, g in zip(params, grads, strict=True):
            p.grad = None if g is None else g.clone()
        optimizer.step()


def trained(name: str, start: Params, history: History, **options: Any) -> Params:
    params = clones(start)
    advance(build(name, params, **options), params, history)
    return params


def trained_apart(name: str, start: Params, history: History, **options: Any) -> Params:
    """Every parameter in an optimizer of its own, which never hears of a gradient that is None."""
    own = [[[grads[i]] for grads in history if grads[i] is not None] for i in range(len(start))]
    return [trained(name, [p], h, **options)[0] for p, h in zip(start, own, strict=True)]


def tensors(optimizer: Optimizer) -> dict[int, dict[str, Tensor]]:
    """A copy of the state, by number of parameter."""
    return copy.deepcopy(optimizer.state_dict()["state"])


def same(ours: Any, theirs: Any) -> None:
    assert_close(ours, theirs, rtol=0, atol=0)


def close(ours: Any, theirs: Any) -> None:
    """Equal to the rounding of a few steps in float64, on numbers of order one."""
    assert_close(ours, theirs, rtol=0, atol=1e-10)


def differ(ours: Params, theirs: Params) -> bool:
    """Whether every parameter differs."""
    return not any(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def losses(params: Params, targets: list[Tensor]) -> Tensor:
    pairs = zip(params, targets, strict=True)
    return torch.stack([0.5 * (p.double() - t.double()).square().sum() for p, t in pairs])


def descend(optimizer: Optimizer, params: Params, targets: list[Tensor], steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        losses(params, targets).sum().backward()
        optimizer.step()


def keeps_basis(name: str) -> bool:
    group = build(name, parameters((2, 2))).param_groups[0]
    return method_of(group).basis is not None


every = pytest.mark.parametrize("name", OPTIMIZERS)
with_matrices = pytest.mark.parametrize("name", MATRIX)
with_bases = pytest.mark.parametrize("name", [n for n in MATRIX if keeps_basis(n)])
of_deva = pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n.startswith("deva")])


# The table ---------------------------------------------------------------------------------------


def test_every_method_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    used = set()
    advance_ = engine._advance_

    def spy(stack: Any) -> None:
        used.add(stack.method.name)
        advance_(stack)

    monkeypatch.setattr(engine, "_advance_", spy)
    start = parameters((3, 4), (5,))
    for name in OPTIMIZERS:
        trained(name, start, gradients(start, 1))
    assert used == set(do.METHODS)


def test_every_class_is_here() -> None:
    public = {x for x in vars(do).values() if isinstance(x, type) and issubclass(x, Optimizer)}
    assert {type(build(name, parameters((2, 2)))) for name in OPTIMIZERS} == public


# Gradients that are absent or zero ---------------------------------------------------------------


@every
def test_without_gradients_nothing_changes(name: str) -> None:
    start = parameters(*SHAPES)
    params = clones(start)
    optimizer = build(name, params)
    optimizer.step()
    same(params, start)
    assert not optimizer.state


@every
def test_a_parameter_without_gradient_sits_out(name: str) -> None:
    start = parameters((4, 4), (4, 4), (4, 4), (5,), (5,), (), dtype=torch.float64)
    history = [
        [g if (k + i) % 3 else None for i, g in enumerate(grads)]
        for k, grads in enumerate(gradients(start, 9))
    ]
    close(trained(name, start, history), trained_apart(name, start, history))


@every
def test_frozen_parameters_are_left_alone(name: str) -> None:
    start = parameters((4, 4), (3, 4), (5,))
    params, alone = clones(start), clones(start)[:1]
    for p in params[1:]:
        p.requires_grad_(False)
    optimizer = build(name, params)
    descend(optimizer, params, [torch.zeros_like(p) for p in params], steps=4)
    descend(build(name, alone), alone, [torch.zeros_like(p) for p in alone], steps=4)
    same(params, [*alone, *start[1:]])
    assert set(optimizer.state) == {params[0]}


@every
def test_zero_gradients_do_nothing_and_leave_nothing_behind(name: str) -> None:
    start = parameters(*SHAPES, (32, 32))
    params = clones(start)
    optimizer = build(name, params, weight_decay=0.0)
    advance(optimizer, params, zeros(params, 4))
    same(params, start)
    assert all(x.isfinite().all() for state in tensors(optimizer).values() for x in state.values())
    advance(optimizer, params, gradients(params, 3) + zeros(params, 2))
    assert all(p.isfinite().all() for p in params)
    assert differ(params, start)
    assert all(x.isfinite().all() for state in tensors(optimizer).values() for x in state.values())


@every
def test_zeros_in_a_gradient_are_harmless_without_eps(name: str) -> None:
    start = parameters((4, 4), (3, 5), (5,))
    history = gradients(start, 5)
    for grads in history:
        for g in grads:
            g[0] = 0
    assert all(p.isfinite().all() for p in trained(name, start, history, eps=0.0))


@of_deva
def test_leading_zeros_do_not_count(name: str) -> None:
    start = parameters((4, 4), (3, 5), (2, 3, 4))
    if name != "deva":  # its rest is AdamW, which counts them
        start += parameters((5,), ())
    history = gradients(start, 5)
    late = zeros(start, 3) + history
    same(
        trained(name, start, late, weight_decay=0.0),
        trained(name, start, history, weight_decay=0.0),
    )


@with_bases
def test_the_first_gradient_that_speaks_chooses_the_basis(name: str) -> None:
    params = parameters((4, 4), (3, 5), (2, 3, 4))
    history = gradients(params, 1)
    prompt, late = build(name, params), build(name, params)
    advance(prompt, params, history)
    advance(late, params, zeros(params, 3) + history)
    for ours, theirs in zip(tensors(late).values(), tensors(prompt).values(), strict=True):
        # Shampoo's roots depend on the count of steps too, and that includes the zeros.
        for key in (key for key in ours if key.startswith(("covariance", "basis"))):
            same(ours[key], theirs[key])
            assert key.startswith("basis") or ours[key].count_nonzero()


@with_matrices
@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        pytest.param([(4, 4)] * 3, {}, id="stack"),
        pytest.param([(4, 4)] * 3, {"split": 3}, id="split"),
        pytest.param([(3, 4), (4, 4), (4, 4)], {"split": (3, 4, 4)}, id="unequal"),
    ],
)
def test_every_matrix_of_a_batch_starts_on_its_own(
    name: str, shapes: list[tuple[int, int]], options: dict[str, Any]
) -> None:
    apart = parameters(*shapes, dtype=torch.float64)
    history = gradients(apart, 7)
    for grads in history[:3]:
        grads[1] = torch.zeros_like(apart[1])
    join = torch.cat if options else torch.stack
    whole = [nn.Parameter(join([p.detach() for p in apart]))]
    joined = [[join(grads)] for grads in history]
    # A parameter has one clock, so it is only at every step that all refreshes coincide.
    shared = {**AS_MATRIX, "refresh_every": 1}
    ours = trained(name, whole, joined, **shared, **options)
    close(ours, [join(trained_apart(name, apart, history, **shared))])


# One step ----------------------------------------------------------------------------------------


@every
def test_closure_runs_once_with_gradients_and_its_loss_is_returned(name: str) -> None:
    start = parameters((4, 4), (5,))
    targets = [torch.zeros_like(p) for p in start]
    params, plain = clones(start), clones(start)
    optimizer, calls = build(name, params), []

    def closure() -> Tensor:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = losses(params, targets).sum()
        loss.backward()
        calls.append(loss)
        return loss

    for _ in range(3):
        with torch.no_grad():
            assert optimizer.step(closure) is calls[-1]
    descend(build(name, plain), plain, targets, steps=3)
    assert len(calls) == 3
    same(params, plain)


@every
@pytest.mark.parametrize("maximize", [False, True])
def test_gradient_is_untouched(name: str, maximize: bool) -> None:
    params = parameters(*SHAPES)
    optimizer = build(name, params, maximize=maximize)
    for grads in gradients(params, 4):
        given = [g.clone() for g in grads]
        for p, g in zip(params, given, strict=True):
            p.grad = g
        optimizer.step()
        assert all(p.grad is g for p, g in zip(params, given, strict=True))
        same(given, grads)


@every
def test_gradients_accumulate_in_place(name: str) -> None:
    """The tensors of the gradients live on from step to step: no state may be a view of them."""
    start = parameters((4, 4), (2, 3, 4), (5,))
    history = gradients(start, 6)
    params = clones(start)
    optimizer = build(name, params)
    advance(optimizer, params, zeros(params, 1))
    for first, second in zip(history[::2], history[1::2], strict=True):
        optimizer.zero_grad(set_to_none=False)
        for p, g, h in zip(params, first, second, strict=True):
            p.grad.add_(g).add_(h)
        optimizer.step()
    sums = [
        [g + h for g, h in zip(first, second, strict=True)]
        for first, second in zip(history[::2], history[1::2], strict=True)
    ]
    same(params, trained(name, start, zeros(start, 1) + sums))


@every
def test_maximize_is_the_negated_gradient(name: str) -> None:
    start = parameters(*SHAPES)
    history = gradients(start, 5)
    negated = [[-g for g in grads] for grads in history]
    same(trained(name, start, history, maximize=True), trained(name, start, negated))


@every
def test_foreach_agrees_with_one_at_a_time(name: str) -> None:
    shapes = [(4, 4), (3, 5), (5, 3), (2, 3, 4), (5,), ()]
    start = parameters(*shapes, *shapes, dtype=torch.float64)
    history = gradients(start, 5)
    default = trained(name, start, history, sides="short")
    close(trained(name, start, history, sides="short", foreach=False), default)
    close(trained_apart(name, start, history, sides="short"), default)


@every
def test_step_decreases_a_quadratic(name: str) -> None:
    params = parameters(*SHAPES)
    targets = [torch.randn_like(p) for p in params]
    optimizer = build(name, params, lr=0.03, weight_decay=0.0)
    before = losses(params, targets)
    descend(optimizer, params, targets, steps=12)
    assert (losses(params, targets) < before).all()


@every
def test_zero_grad(name: str) -> None:
    params = parameters((4, 4), (5,))
    optimizer = build(name, params)
    advance(optimizer, params, gradients(params, 1))
    optimizer.zero_grad(set_to_none=False)
    assert not any(p.grad.count_nonzero() for p in params)
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)


@every
def test_repr_shows_the_options(name: str) -> None:
    text = repr(build(name, parameters((4, 4), (5,)), lr=0.0625))
    assert text.startswith(type(build(name, parameters((2, 2)))).__name__)
    assert "lr: 0.0625" in text


@every
def test_step_hooks_run_before_and_after(name: str) -> None:
    params = parameters((4, 4), (5,))
    optimizer, seen = build(name, params), []
    for register in (optimizer.register_step_pre_hook, optimizer.register_step_post_hook):
        register(lambda *_: seen.append(clones(params)))
    advance(optimizer, params, gradients(params, 3))
    assert len(seen) == 6
    same(seen[1::2][:-1], seen[2::2])
    assert differ(seen[-2], seen[-1])
    same(seen[-1], params)


@every
def test_requires_grad_may_be_toggled(name: str) -> None:
    """A parameter that is frozen for a while goes on where it stopped."""
    start = parameters((4, 4), (5,))
    targets = [torch.zeros_like(p) for p in start]
    params = clones(start)
    optimizer = build(name, params)
    descend(optimizer, params, targets, steps=4)
    params[0].requires_grad_(False)
    before = params[0].detach().clone()
    descend(optimizer, params, targets, steps=2)
    same(params[0].detach(), before)
    params[0].requires_grad_(True)
    descend(optimizer, params, targets, steps=4)
    for p, target, steps in zip(clones(start), targets, (8, 10), strict=True):
        descend(build(name, [p]), [p], [target], steps)
        same(p, params[0 if steps == 8 else 1])


# Options, groups and schedules -------------------------------------------------------------------


@every
def test_tensor_lr_agrees_with_a_float(name: str) -> None:
    start = parameters(*SHAPES, dtype=torch.float64)
    history = gradients(start, 5)
    lr = torch.tensor(0.01, dtype=torch.float64)
    # One rounding apart: U times a tensor is rounded before it is subtracted.
    close(trained(name, start, history, lr=lr), trained(name, start, history, lr=0.01))


@every
def test_tensor_lr_may_be_changed_in_place(name: str) -> None:
    start = parameters((4, 4), (5,), dtype=torch.float64)
    history = gradients(start, 6)
    params, lr = clones(start), torch.tensor(2**-6, dtype=torch.float64)
    optimizer = build(name, params, lr=lr)
    advance(optimizer, params, history[:3])
    before = clones(params)
    lr.zero_()
    advance(optimizer, params, history[3:4])
    same(params, before)
    lr.fill_(2**-5)
    advance(optimizer, params, history[4:])

    plain = clones(start)
    other = build(name, plain)
    for rate, grads in zip([2**-6] * 3 + [0.0] + [2**-5] * 2, history, strict=True):
        for group in other.param_groups:
            group["lr"] = rate
        advance(other, plain, [grads])
    close(params, plain)


@every
def test_groups_have_their_own_rate_and_decay(name: str) -> None:
    start = parameters((4, 4), (4, 4), (5,), (5,))
    history = gradients(start, 5)
    settings = [{"lr": lr, "weight_decay": wd} for lr in (0.01, 0.02) for wd in (0.0, 0.3)]
    params = clones(start)
    groups = [
        {"params": [p], **OPTIONS, **setting} for p, setting in zip(params, settings, strict=True)
    ]
    advance(OPTIMIZERS[name](groups), params, history)
    for i, setting in enumerate(settings):
        own = [[grads[i]] for grads in history]
        same([params[i]], trained(name, [start[i]], own, **setting))


@every
def test_a_group_may_be_added_later(name: str) -> None:
    start = parameters((4, 4), (3, 4), (5,))
    history = gradients(start, 8)
    params = clones(start)
    optimizer = build(name, params[:1])
    advance(optimizer, params[:1], [grads[:1] for grads in history[:4]])
    optimizer.add_param_group({"params": params[1:], **OPTIONS, "lr": 2**-5})
    advance(optimizer, params, history[4:])
    same(params[:1], trained(name, start[:1], [grads[:1] for grads in history]))
    same(params[1:], trained(name, start[1:], [grads[1:] for grads in history[4:]], lr=2**-5))


@every
def test_a_group_added_later_is_as_one_from_the_start(name: str) -> None:
    start = parameters((4, 4), (5,))
    history = gradients(start, 3)
    early, late = clones(start), clones(start)
    first = OPTIMIZERS[name]([{"params": early[:1]}, {"params": early[1:]}])
    second = OPTIMIZERS[name]([{"params": late[:1]}])
    second.add_param_group({"params": late[1:]})
    advance(first, early, history)
    advance(second, late, history)
    same(late, early)


@every
def test_names_change_nothing(name: str) -> None:
    start = parameters(*SHAPES)
    history = gradients(start, 5)
    params = clones(start)
    optimizer = build(name, [(f"part{i}", p) for i, p in enumerate(params)])
    advance(optimizer, params, history)
    same(params, trained(name, start, history))
    names = itertools.chain.from_iterable(group["param_names"] for group in optimizer.param_groups)
    assert set(names) == {f"part{i}" for i in range(len(SHAPES))}


SCHEDULERS = {
    "step": lambda o: lr_scheduler.StepLR(o, 2),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "warm-up": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.8)], [3]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "one-cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=6),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
}


def replayed(name: str, start: Params, history: History, settings: list[dict[str, Any]]) -> Params:
    params = clones(start)
    optimizer = build(name, params)
    for setting, grads in zip(settings, history, strict=True):
        optimizer.param_groups[0].update(setting)
        advance(optimizer, params, [grads])
    return params


@every
@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_schedulers_are_obeyed(name: str, schedule: str) -> None:
    start = parameters((4, 4))
    history = gradients(start, 6)
    params = clones(start)
    optimizer = build(name, params)
    scheduler = SCHEDULERS[schedule](optimizer)
    seen = []
    for grads in history:
        seen.append({key: optimizer.param_groups[0][key] for key in ("lr", "betas")})
        advance(optimizer, params, [grads])
        scheduler.step(*([1.0] if schedule == "plateau" else []))
    same(params, replayed(name, start, history, seen))
    assert differ(params, trained(name, start, history))
    if schedule in ("one-cycle", "cyclic"):
        rates = [{"lr": setting["lr"]} for setting in seen]
        assert differ(params, replayed(name, start, history, rates))


@every
def test_scheduler_moves_a_tensor_lr(name: str) -> None:
    start = parameters((4, 4), (5,), dtype=torch.float64)
    ends = []
    for lr in (torch.tensor(2**-6, dtype=torch.float64), 2**-6):
        params = clones(start)
        optimizer = build(name, params, lr=lr)
        scheduler = lr_scheduler.StepLR(optimizer, 2, 0.5)
        torch.manual_seed(1)
        for grads in gradients(params, 6):
            advance(optimizer, params, [grads])
            scheduler.step()
        ends.append(params)
    close(*ends)  # one rounding apart at every step, as above


@every
def test_gradient_scaler(name: str) -> None:
    start = parameters((4, 4), (3, 5), (5,))
    targets = [torch.zeros_like(p) for p in start]
    params, plain = clones(start), clones(start)
    optimizer = build(name, params)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    for k in range(6):
        optimizer.zero_grad()
        scaler.scale(losses(params, targets).sum()).backward()
        if k == 3:  # an overflow: the scaler does not take this step
            params[0].grad[0, 0] = torch.inf
            before = clones(params)
        scaler.step(optimizer)
        scaler.update()
        if k == 3:
            same(params, before)
    descend(build(name, plain), plain, targets, steps=5)
    same(params, plain)  # scales are powers of two: they come off without rounding


# Checkpoints and copies --------------------------------------------------------------------------


@every
@pytest.mark.parametrize(
    "options",
    [{}, {"state_dtype": torch.bfloat16}, {"lr": torch.tensor(2**-6)}, {"split": (3, 2)}],
    ids=["plain", "state_dtype", "tensor-lr", "split"],
)
def test_state_goes_through_a_file(name: str, options: dict[str, Any], tmp_path: Any) -> None:
    params = parameters((5, 5), (5, 3))
    optimizer = build(name, params, **options)
    advance(optimizer, params, gradients(params, 4))
    saved = optimizer.state_dict()
    torch.save(saved, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt")  # weights_only, by default
    same(loaded["state"], saved["state"])
    assert loaded["param_groups"] == saved["param_groups"]
    assert all(isinstance(x, Tensor) for state in loaded["state"].values() for x in state.values())


def resumable(name: str, dtype: torch.dtype, **options: Any) -> tuple[Params, Optimizer]:
    """Parameters of many kinds, one of them cut into unequal parts, and their optimizer."""
    torch.manual_seed(0)
    params = parameters((4, 4), (3, 5), (4, 4), (2, 3, 3), (5,), (), (7, 3), dtype=dtype)
    optimizer = build(name, params[:-1], **options)
    optimizer.add_param_group({"params": params[-1:], **OPTIONS, **options, "split": (3, 4)})
    return params, optimizer


@every
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.float32, {}),
        (torch.float64, {"lr": torch.tensor(2**-6)}),
        (torch.bfloat16, {}),
        (torch.float32, {"state_dtype": torch.bfloat16}),
    ],
    ids=["float32", "float64", "bfloat16", "state_dtype"],
)
def test_resume_is_exact(
    name: str, dtype: torch.dtype, options: dict[str, Any], tmp_path: Any
) -> None:
    params, optimizer = resumable(name, dtype, **options)
    history = gradients(params, 9)
    for grads in history[:5]:  # a matrix that has no basis yet when the state is saved
        grads[3][1] = 0
    advance(optimizer, params, history[:3])
    torch.save([params, optimizer.state_dict()], tmp_path / "state.pt")
    advance(optimizer, params, history[3:])

    resumed, other = resumable(name, dtype, **options)
    weights, state = torch.load(tmp_path / "state.pt")
    with torch.no_grad():
        torch._foreach_copy_(resumed, weights)
    other.load_state_dict(state)
    advance(other, resumed, history[3:])
    same(resumed, params)
    same(tensors(other), tensors(optimizer))  # dtypes included
    assert len({p.dtype for p in resumed}) == 1


@every
def test_loading_shares_nothing(name: str) -> None:
    params, optimizer = resumable(name, torch.float32, lr=torch.tensor(2**-6))
    others, other = resumable(name, torch.float32)
    history = gradients(params, 6)
    advance(optimizer, params, history[:4])
    given = optimizer.state_dict()
    before = copy.deepcopy(given)
    other.load_state_dict(given)
    for group in other.param_groups:
        group["lr"].mul_(0.5)
    advance(other, others, history[4:])
    same(given["state"], before["state"])
    assert given["param_groups"] == before["param_groups"]
    kept = {id(x) for state in optimizer.state.values() for x in state.values()}
    assert not any(id(x) in kept for state in other.state.values() for x in state.values())


@every
def test_a_fresh_state_may_be_saved_and_loaded(name: str) -> None:
    start = parameters((4, 4), (5,))
    history = gradients(start, 4)
    fresh = build(name, start, lr=2**-5).state_dict()
    assert fresh["state"] == {}
    params = clones(start)
    optimizer = build(name, params)
    advance(optimizer, params, history)
    optimizer.load_state_dict(fresh)  # forgets what it had
    restarted = clones(params)
    advance(optimizer, params, history)
    same(params, trained(name, restarted, history, lr=2**-5))


@every
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
    ids=["deepcopy", "pickle"],
)
def test_copies_go_their_own_way(name: str, copied: Any) -> None:
    params, optimizer = resumable(name, torch.float32)
    history = gradients(params, 6)
    advance(optimizer, params, history[:3])
    twins, twin = copied((params, optimizer))
    before, state = clones(params), tensors(optimizer)
    advance(twin, twins, history[3:])
    same(params, before)
    same(tensors(optimizer), state)
    advance(optimizer, params, history[3:])
    same(twins, params)
    same(tensors(twin), tensors(optimizer))
    assert repr(twin) == repr(optimizer)


# Precision ---------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_trains(name: str, dtype: torch.dtype) -> None:
    # From zero, because SPlus moves a vector by less than the rounding of a weight of order one.
    params = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES]
    targets = [torch.randn_like(p) for p in params]
    optimizer = build(name, params, lr=0.125, weight_decay=0.0)
    before = losses(params, targets)
    descend(optimizer, params, targets, steps=10)
    assert (losses(params, targets) < before).all()
    assert all(p.dtype == dtype for p in params)
    state = [x for values in optimizer.state.values() for x in values.values()]
    assert {x.dtype for x in state if x.is_floating_point()} == {torch.float32}


@every
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_rounds_the_weight_alone(name: str, dtype: torch.dtype) -> None:
    start = parameters(*SHAPES, dtype=dtype)
    history = gradients(start, 2)
    wide = [nn.Parameter(p.detach().float()) for p in start]
    ours, theirs = build(name, start), build(name, wide)
    for grads in history:
        with torch.no_grad():
            torch._foreach_copy_(wide, start)
        advance(ours, start, [grads])
        advance(theirs, wide, [[g.float() for g in grads]])
        same([p.detach() for p in start], [p.detach().to(dtype) for p in wide])


@every
def test_float64_is_float64_throughout(name: str) -> None:
    params = parameters(*SHAPES, dtype=torch.float64)
    history = gradients(params, 5)
    single = [nn.Parameter(p.detach().float()) for p in params]
    optimizer = build(name, params)
    advance(optimizer, params, history)
    advance(build(name, single), single, [[g.float() for g in grads] for grads in history])
    assert all(not torch.equal(p, p.float().double()) for p in params)
    counts = ("step", "clock", "waiting", "idle")  # whole numbers
    for values in optimizer.state.values():
        assert {x.dtype for k, x in values.items() if k not in counts} == {torch.float64}


@every
def test_dtypes_may_be_mixed(name: str) -> None:
    dtypes = (torch.float32, torch.float64, *HALF)
    start = [p for dtype in dtypes for p in parameters((4, 4), (5,), dtype=dtype)]
    history = gradients(start, 5)
    same(trained(name, start, history), trained_apart(name, start, history))


@every
def test_state_dtype_is_for_the_averages(name: str) -> None:
    params = parameters(*SHAPES)
    targets = [torch.randn_like(p) for p in params]
    optimizer = build(name, params, lr=0.03, weight_decay=0.0, state_dtype=torch.bfloat16)
    before = losses(params, targets)
    descend(optimizer, params, targets, steps=10)
    assert (losses(params, targets) < before).all()
    for values in optimizer.state.values():
        small = {key for key, x in values.items() if x.dtype == torch.bfloat16}
        averages = {key for key in values if key.startswith("exp_avg")}
        assert small in (averages, averages - {"exp_avg"})  # SOAP keeps its momentum wide
        assert small


@every
def test_state_dtype_rounds_and_no_more(name: str) -> None:
    params = parameters((4, 4), (3, 5), (3, 5), (5,))
    history = gradients(params, 4)
    ours, theirs = build(name, params, state_dtype=torch.bfloat16), build(name, params)
    advance(ours, params, history)
    advance(theirs, params, history)
    for p in params:  # eight bits: each of four steps rounds by one part in 512 at the most
        small, wide = ours.state[p]["exp_avg"].float(), theirs.state[p]["exp_avg"]
        assert_close(small, wide, rtol=0, atol=2**-7 * wide.abs().max().item())


# Layout ------------------------------------------------------------------------------------------


def strided(p: nn.Parameter) -> nn.Parameter:
    """The same numbers, every other one of a larger tensor."""
    return nn.Parameter(torch.stack([p.detach(), torch.zeros_like(p)], -1)[..., 0])


def transposed(p: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(p.detach().mT.contiguous().mT)


def channels_last(p: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(p.detach().contiguous(memory_format=torch.channels_last))


@every
@pytest.mark.parametrize(
    ("shape", "lay"),
    [
        ((5,), strided),
        ((4, 4), strided),
        ((3, 5), transposed),
        ((2, 3, 4), transposed),
        ((4, 2, 3, 3), channels_last),
    ],
)
def test_memory_format_is_of_no_account(name: str, shape: tuple[int, ...], lay: Any) -> None:
    start = parameters(shape, dtype=torch.float64)
    history = gradients(start, 5)
    expected = trained(name, start, history, sides="short")
    params = [lay(p) for p in start]
    assert not params[0].is_contiguous()
    stride = params[0].stride()
    optimizer = build(name, params, sides="short")
    for k, grads in enumerate(history):  # gradients laid out in the same way, or in the other
        laid_out = [lay(g).detach() for g in grads] if k % 2 else grads
        advance(optimizer, params, [laid_out])
    close(params, expected)
    assert params[0].stride() == stride


@every
def test_a_loaded_state_may_be_laid_out_otherwise(name: str) -> None:
    """A checkpoint that was made or edited elsewhere: a copy of a state is not the state."""
    params = parameters((4, 2, 3, 3))
    optimizer = build(name, params)
    history = gradients(params, 5)
    advance(optimizer, params, history[:3])
    others = clones(params)
    other = build(name, others)
    state = copy.deepcopy(optimizer.state_dict())
    for key, x in state["state"][0].items():
        if x.ndim == 4:
            state["state"][0][key] = x.contiguous(memory_format=torch.channels_last)
    other.load_state_dict(state)
    advance(optimizer, params, history[3:])
    advance(other, others, history[3:])
    same(others, params)


def read_as(read: Any, start: Params, history: History) -> tuple[Params, History]:
    """The same numbers as other parameters: `read` turns one tensor into a list of them."""
    params = [nn.Parameter(x.clone()) for p in start for x in read(p.detach())]
    return params, [[x for g in grads for x in read(g)] for grads in history]


@every
@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((4, 2, 3), "conv"),
        ((4, 2, 3, 3), "auto"),
        ((4, 2, 3, 3), "conv"),
        ((3, 2, 2, 2, 2), "auto"),
    ],
)
def test_a_convolution_is_one_matrix(name: str, shape: tuple[int, ...], layout: str) -> None:
    start = parameters(shape, dtype=torch.float64)
    history = gradients(start, 5)
    flat, flat_history = read_as(lambda x: [x.flatten(1)], start, history)
    (ours,) = trained(name, start, history, layout=layout, **AS_MATRIX)
    close([ours.flatten(1)], trained(name, flat, flat_history, **AS_MATRIX))


@with_matrices
@pytest.mark.parametrize(
    ("lead", "layout"), [((3,), "auto"), ((3,), "stack"), ((2, 2), "stack"), ((1,), "stack")]
)
def test_a_stack_is_its_matrices(name: str, lead: tuple[int, ...], layout: str) -> None:
    start = parameters((*lead, 3, 4), dtype=torch.float64)
    history = gradients(start, 5)
    apart = read_as(lambda x: x.flatten(0, -3), start, history)
    (ours,) = trained(name, start, history, layout=layout, **AS_MATRIX)
    close(list(ours.flatten(0, -3)), trained_apart(name, *apart, **AS_MATRIX))


@with_matrices
@pytest.mark.parametrize(
    ("shape", "sizes", "options"),
    [
        ((9, 4), (3, 3, 3), {"split": 3}),
        ((9, 4), (2, 4, 3), {"split": (2, 4, 3)}),
        ((4, 6), (3, 3), {"split": 2, "split_dim": -1}),
        ((4, 6), (2, 4), {"split": (2, 4), "split_dim": -1}),
        ((2, 6, 4), (4, 2), {"split": (4, 2)}),
        ((2, 4, 6), (2, 2, 2), {"split": 3, "split_dim": -1}),
        ((6, 2, 3, 3), (2, 4), {"split": (2, 4)}),
    ],
    ids=str,
)
def test_a_split_weight_is_its_parts(
    name: str, shape: tuple[int, ...], sizes: tuple[int, ...], options: dict[str, Any]
) -> None:
    dim = 0 if len(shape) == 4 else options.get("split_dim", -2)
    start = parameters(shape, dtype=torch.float64)
    history = gradients(start, 5)
    apart = read_as(lambda x: x.split(sizes, dim), start, history)
    (ours,) = trained(name, start, history, **AS_MATRIX, **options)
    close(list(ours.split(sizes, dim)), trained_apart(name, *apart, **AS_MATRIX))


@every
@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (1, 4, 1), ()])
def test_what_has_one_side_is_a_vector(name: str, shape: tuple[int, ...]) -> None:
    start = parameters(shape)
    history = gradients(start, 5)
    flat = read_as(lambda x: [x.reshape(-1)], start, history)
    (ours,) = trained(name, start, history)
    same([ours.reshape(-1)], trained(name, *flat))
