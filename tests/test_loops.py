"""Groups as other people's training loops hand them over, and what a loop does with ours."""

import io
import re
import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import deva_optim as do
from helpers import MATRIX, OPTIMIZERS

CLASSES = {
    cls.__name__: cls
    for cls in (
        *(do.DeVA, do.DeVASinf, do.DeVALinf, do.AdamW, do.Signum, do.Lion, do.Muon, do.AdaMuon),
        *(do.NorMuon, do.SOAP, do.Shampoo, do.SPlus),
    )
}
every_class = pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)


class Net(nn.Module):
    """An embedding, two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 12, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x).relu()
        return self.head(self.norm(x))


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    logits = model(torch.arange(12))
    nn.functional.cross_entropy(logits, torch.arange(12).roll(1)).backward()
    optimizer.step()


def role(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> str:
    """Whether a parameter is updated as a matrix."""
    reading = next(r for r in optimizer.readings() if r.param is param)
    return "matrix" if reading.is_matrix else "vector"


def group_of(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> dict:
    return next(g for g in optimizer.param_groups if any(p is param for p in g["params"]))


# Names -------------------------------------------------------------------------------------------


@every_class
def test_names_are_names_however_they_come(cls) -> None:
    model, same = net(), net()
    names, tensors = zip(*model.named_parameters(), strict=True)
    theirs = cls([{"params": list(tensors), "param_names": list(names), "lr": 0.01}])
    ours = cls([{"params": list(same.named_parameters()), "lr": 0.01}])
    for _ in range(2):
        step(model, theirs)
        step(same, ours)
    for p, q in zip(model.parameters(), same.parameters(), strict=True):
        assert torch.equal(p, q)
    found = [name for group in theirs.param_groups for name in group["param_names"]]
    assert sorted(found) == sorted(names)
    with pytest.raises(ValueError, match="param_names has 1 names for the 8 parameters"):
        cls([{"params": list(tensors), "param_names": ["one"]}])


@every_class
def test_groups_hold_tensors_after_construction(cls) -> None:
    model = net()
    for params in (
        model,
        model.parameters(),
        model.named_parameters(),
        do.param_groups(model),
        [{"params": model.named_parameters()}],
    ):
        optimizer = cls(params)
        held = [p for group in optimizer.param_groups for p in group["params"]]
        assert all(type(p) is nn.Parameter for p in held)
        assert {id(p) for p in held} == {id(p) for p in model.parameters()}


# A model -----------------------------------------------------------------------------------------


@every_class
def test_every_optimizer_takes_a_model_with_the_same_routing(cls) -> None:
    model = net()
    optimizer = cls(model, lr=0.01)
    expected = [
        {key: group[key] for key in ("role", "weight_decay") if key in group}
        for group in do.param_groups(model)
    ]
    found = [
        {key: group[key] for key in asked}
        for group, asked in zip(optimizer.param_groups, expected, strict=True)
    ]
    assert found == expected
    step(model, optimizer)
    assert group_of(optimizer, model.norm.weight)["weight_decay"] == 0
    if has_matrices(optimizer):
        assert role(optimizer, model.embed.weight) == role(optimizer, model.head.weight) == "vector"
        assert role(optimizer, model.blocks[0].weight) == "matrix"


def has_matrices(optimizer: torch.optim.Optimizer) -> bool:
    return do.METHODS[optimizer.defaults["method"]].vector is not None


@every_class
def test_tensors_may_be_added_later_to_the_optimizer_of_a_model(cls) -> None:
    model, same = net(), net()
    optimizer, other = cls(model.blocks, lr=0.01), cls(list(same.blocks.parameters()), lr=0.01)
    for late, first in ((optimizer, model), (other, same)):
        late.add_param_group({"params": [first.norm.weight]})  # as Lightning's BaseFinetuning does
        step(first, late)
    assert re.fullmatch(r"param_groups.*\[0\]", *optimizer.param_groups[-1]["param_names"])
    assert torch.equal(model.norm.weight, same.norm.weight)


# Keys of others ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MATRIX)
@pytest.mark.parametrize(
    ("key", "matrix", "vector"),
    [
        ("use_muon", True, False),
        ("algorithm", "muon", "adamw"),
        ("kind", "muon", "adamw"),
        ("use_fallback", False, True),
    ],
)
def test_the_roles_of_other_muons_are_read(name: str, key: str, matrix, vector) -> None:
    model = net()
    hidden = [block.weight for block in model.blocks]
    groups = [
        {"params": hidden, key: matrix, "role": "auto"}
        if key == "use_fallback"
        else {"params": hidden, key: matrix},
        {"params": [model.embed.weight, model.head.weight], key: vector},
    ]
    optimizer = OPTIMIZERS[name](groups)
    assert role(optimizer, hidden[0]) == "matrix"
    assert role(optimizer, model.embed.weight) == "vector"
    assert optimizer.param_groups[-1][key] == vector  # a loop of theirs reads it again


def test_the_elementwise_method_that_a_group_names_is_taken() -> None:
    vector = nn.Parameter(torch.zeros(3))
    optimizer = do.DeVASinf([{"params": [vector], "algorithm": "lion"}])
    assert optimizer.param_groups[0]["rest"] == "lion"


def test_a_key_that_nobody_knows_is_named_with_the_nearest() -> None:
    p = nn.Parameter(torch.zeros(3, 4))
    with pytest.warns(UserWarning, match=r"'weight_decy', which .* did you mean 'weight_decay'\?"):
        do.Muon([{"params": [p], "weight_decy": 0.1}])
    with pytest.warns(UserWarning, match=r"'zzz', which means nothing here$"):
        do.AdamW([{"params": [p], "zzz": 1}])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        do.Muon([{"params": [p], "fused": True, "initial_lr": 0.1, "name": "all"}])


# Tensors without names ---------------------------------------------------------------------------


def gpt(vocabulary: int, width: int, layers: int = 2, positions: int = 0) -> list[torch.Tensor]:
    """The shapes of a language model, on the meta device."""
    block = [(width, width)] * 4 + [(3 * width, width), (width, 3 * width)]
    shapes = [(vocabulary, width)] + [(positions, width)] * bool(positions)
    shapes += layers * block + [(vocabulary, width)]
    return [nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes]


@pytest.mark.parametrize(
    ("params", "tables"),
    [
        (gpt(32000, 4096), [0, -1]),  # Llama 2, Mistral
        (gpt(32128, 4096), [0, -1]),  # T5
        (gpt(50257, 768, positions=1024), [0, 1, -1]),  # GPT-2's wpe
        (gpt(50257, 1280, positions=448), [0, 1, -1]),  # Whisper's
        (gpt(1000, 768)[1:], [-1]),  # the head of a vision transformer
    ],
)
def test_shapes_tell_tables_from_hidden_matrices(params, tables) -> None:
    with pytest.warns(UserWarning, match="their shapes alone"):
        optimizer = do.DeVA(params)
    vectors = {id(p) for p in params if role(optimizer, p) == "vector"}
    assert vectors == {id(params[i]) for i in tables}


def test_what_shapes_decided_is_said_once_with_the_remedy() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do.DeVA(gpt(32000, 256, positions=1024))
        do.DeVA(net())
        do.DeVA(net().named_parameters())
        do.DeVA([nn.Parameter(torch.zeros(4, 4))])  # nothing to confuse it with
    assert len(caught) == 1
    text = str(caught[0].message)
    assert caught[0].filename == __file__
    assert "32000×256" in text
    assert "1024×256         matrix" in text  # four times the width, as a feed-forward layer has
    assert "DeVA(model, …)" in text


# Flattened weights -------------------------------------------------------------------------------


def flattened(model: Net) -> Net:
    """As FSDP1 leaves a model with `use_orig_params=True`: weights of one dimension."""
    weight = model.blocks[0].weight
    model.blocks[0].weight = nn.Parameter(weight.detach().flatten())
    return model


@every_class
def test_a_flattened_weight_is_an_error_that_names_fsdp2(cls) -> None:
    with pytest.raises(ValueError, match=r"blocks.0.weight is flattened .* FSDP2"):
        cls(flattened(net()))


def test_flat_parameters_are_known_by_name_and_type() -> None:
    class FlatParameter(nn.Parameter):
        pass

    flat = FlatParameter(torch.zeros(64))
    for params in ([("_fsdp_wrapped_module._flat_param", flat)], [flat]):
        with pytest.raises(ValueError, match="FSDP2"):
            do.DeVA(params)
    names = [("model.layers.0.self_attn.q_proj.weight", nn.Parameter(torch.zeros(64)))]
    with pytest.raises(ValueError, match=r"q_proj.weight is flattened"):
        do.DeVA(names)
    do.DeVA([("model.layers.0.input_layernorm.weight", nn.Parameter(torch.zeros(64)))])


def test_a_flat_group_in_the_place_of_ours_is_an_error_that_names_fsdp2() -> None:
    model = net()
    optimizer = do.DeVA(model)
    flat = nn.Parameter(torch.zeros(128))
    flat.grad = torch.ones(128)
    optimizer.param_groups[0]["params"] = [flat]  # as ZeRO does
    optimizer.param_groups[0]["param_names"] = ["flat"]
    with pytest.raises(ValueError, match="FSDP2"):
        optimizer.step()


# Groups are live ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MATRIX)
def test_betas_of_a_group_of_vectors_count(name: str) -> None:
    def end(betas: tuple[float, float] | None, later: bool) -> torch.Tensor:
        p = nn.Parameter(torch.ones(5))
        given = {"betas": betas} if betas and not later else {}
        optimizer = OPTIMIZERS[name]([{"params": [p], "role": "vector", "lr": 0.1, **given}])
        if betas and later:
            optimizer.param_groups[0]["betas"] = betas
        generator = torch.Generator().manual_seed(0)
        for _ in range(5):
            p.grad = torch.randn(5, generator=generator)
            optimizer.step()
        return p.detach()

    assert not torch.equal(end((0.2, 0.3), later=False), end(None, later=False))
    assert torch.equal(end((0.2, 0.3), later=False), end((0.2, 0.3), later=True))


@every_class
def test_a_momentum_that_is_set_later_counts(cls) -> None:
    def end(momentum: float | None) -> torch.Tensor:
        p = nn.Parameter(torch.eye(4))
        optimizer = cls([{"params": [p], "role": "auto"}], lr=0.1)
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            if momentum is not None:
                optimizer.param_groups[0]["momentum"] = momentum
            p.grad = torch.randn(4, 4, generator=generator)
            optimizer.step()
        return p.detach()

    assert not torch.equal(end(0.3), end(None))


def test_momentum_is_in_the_groups_where_it_is_an_argument() -> None:
    p = nn.Parameter(torch.zeros(3, 4))
    for cls in (do.Muon, do.Signum):
        assert cls([p], momentum=0.7).param_groups[0]["momentum"] == 0.7
        assert cls([{"params": [p], "betas": (0.6, 0.9)}]).param_groups[0]["momentum"] == 0.6
        assert "betas" not in cls([p]).param_groups[0]
        with pytest.raises(ValueError, match=r"momentum must be in \[0, 1\), got 1.5"):
            cls([p], momentum=1.5)
    group = do.DeVA([{"params": [p], "momentum": 0.6, "role": "matrix"}]).param_groups[0]
    assert group["betas"] == (0.6, 0.95, 0.95)


def test_one_cycle_moves_the_momentum_of_every_group() -> None:
    for cls in (do.DeVA, do.Muon):
        model = net()
        optimizer = cls(model, lr=0.01)
        scheduler = lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=10)
        keys = ["momentum" if "momentum" in g else "betas" for g in optimizer.param_groups]
        before = [g[key] for g, key in zip(optimizer.param_groups, keys, strict=True)]
        step(model, optimizer)
        scheduler.step()
        after = [g[key] for g, key in zip(optimizer.param_groups, keys, strict=True)]
        assert len(before) > 1
        assert all(a != b for a, b in zip(after, before, strict=True))


def test_rates_that_are_tensors_have_groups_of_their_own() -> None:
    """They may be changed in place, each by itself, however alike they are now."""
    rates = {"embedding_lr": torch.tensor(0.1), "head_lr": torch.tensor(0.1)}
    for params in (net(), net().named_parameters()):
        optimizer = do.DeVA(params, **rates)
        found = {name: g["lr"] for g in optimizer.param_groups for name in g["param_names"]}
        assert found["embed.weight"] is rates["embedding_lr"]
        assert found["head.weight"] is rates["head_lr"]


@every_class
def test_telemetry_is_there_at_any_time_after_a_step(cls) -> None:
    model = net()
    optimizer = cls(model, lr=0.01)
    step(model, optimizer)
    found = optimizer.telemetry()
    optimizer.zero_grad()
    assert optimizer.telemetry() == found
    assert bool(found) == has_matrices(optimizer)


# Rates of their own ------------------------------------------------------------------------------


@every_class
def test_kinds_of_parameters_have_rates_of_their_own_and_schedulers_multiply_all(cls) -> None:
    for given in ("model", "groups", "names"):
        model = net()
        params = {
            "model": model,
            "groups": do.param_groups(model),
            "names": model.named_parameters(),
        }[given]
        if given == "names" and cls is not do.DeVA:
            continue  # it does not tell an embedding from a hidden matrix then
        optimizer = cls(
            params, 0.01, weight_decay=0.5, rest_lr=0.02, embedding_lr=0.03, head_lr=0.04,
            rest_weight_decay=0.25,
        )  # fmt: skip
        expected = {
            model.blocks[0].weight: (0.01, 0.5),
            model.embed.weight: (0.03, 0.25),
            model.head.weight: (0.04, 0.25),
            model.norm.weight: (0.02, 0.0),
            model.blocks[0].bias: (0.02, 0.0),
        }
        scheduler = lr_scheduler.LambdaLR(optimizer, lambda i: 0.5**i)
        for factor in (1, 0.5):
            for p, (lr, decay) in expected.items():
                group = group_of(optimizer, p)
                assert (group["lr"], group["weight_decay"]) == (lr * factor, decay)
            step(model, optimizer)
            scheduler.step()


def test_a_rest_by_shape_has_its_rate() -> None:
    matrix, vector = nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(4))
    optimizer = do.Muon([matrix, vector], lr=0.01, rest_lr=0.3)
    assert group_of(optimizer, matrix)["lr"] == 0.01
    assert group_of(optimizer, vector)["lr"] == 0.3
    assert len(do.Muon([matrix, vector]).param_groups) == 1


def test_a_rate_that_a_group_has_stands_above_that_of_its_kind() -> None:
    model = net()
    groups = do.param_groups(model, overrides=[("head", {"lr": 0.7})])
    assert group_of(do.DeVA(groups, head_lr=0.1), model.head.weight)["lr"] == 0.7


@pytest.mark.parametrize("argument", ["rest_lr", "embedding_lr", "head_lr", "rest_weight_decay"])
def test_rates_are_checked(argument: str) -> None:
    with pytest.raises(ValueError, match=rf"{argument} must be .*, got -1"):
        do.DeVA(net(), **{argument: -1})


def test_rates_that_reach_nothing_are_said() -> None:
    with pytest.warns(UserWarning, match="head_lr has no effect"):
        do.Muon([nn.Parameter(torch.zeros(3, 4))], head_lr=0.1)


@every_class
def test_a_checkpoint_keeps_the_rates_and_goes_on(cls) -> None:
    def make() -> tuple[Net, torch.optim.Optimizer]:
        model = net()
        return model, cls(model, lr=0.01, rest_lr=0.02, head_lr=0.03)

    model, optimizer = make()
    step(model, optimizer)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    step(model, optimizer)
    file.seek(0)
    again, resumed = make()
    saved = torch.load(file)
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    step(again, resumed)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q)


# torch's own signatures --------------------------------------------------------------------------


def trajectory(optimizer_of, dtype: torch.dtype, steps: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.randn(6, 9, generator=generator).to(dtype))
    optimizer = optimizer_of([p])
    for _ in range(steps):
        p.grad = torch.randn(6, 9, generator=generator).to(dtype)
        optimizer.step()
    return p.detach()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has a Muon from 2.9 on")
def test_muons_arguments_come_in_torchs_order() -> None:
    import inspect

    theirs = list(inspect.signature(torch.optim.Muon).parameters)
    assert list(inspect.signature(do.Muon).parameters)[: len(theirs)] == theirs
    theirs = list(inspect.signature(torch.optim.AdamW).parameters)
    ours = inspect.signature(do.AdamW).parameters
    positional = [k for k, x in ours.items() if x.kind is x.POSITIONAL_OR_KEYWORD]
    assert positional == theirs[: len(positional)]
    assert set(theirs) <= set(ours)
    for name in ("lr", "weight_decay", "momentum", "nesterov", "ns_coefficients", "ns_steps"):
        both = (
            inspect.signature(cls).parameters[name].default for cls in (do.Muon, torch.optim.Muon)
        )
        assert len(set(both)) == 1, name


def test_adamw_takes_torchs_arguments_or_says_which_it_cannot() -> None:
    p = nn.Parameter(torch.zeros(3))
    for accepted in ({"fused": True}, {"fused": None}, {"capturable": False}, {"amsgrad": False}):
        do.AdamW([p], **accepted)
    for refused in ("amsgrad", "capturable", "differentiable"):
        with pytest.raises(ValueError, match=f"{refused} is not supported"):
            do.AdamW([p], **{refused: True})
        with pytest.raises(ValueError, match=f"{refused} is not supported"):
            do.AdamW([{"params": [p], refused: True}])
    a = trajectory(lambda q: torch.optim.AdamW(q, 0.1, (0.8, 0.9), 1e-6, 0.2, False), torch.float64)
    b = trajectory(lambda q: do.AdamW(q, 0.1, (0.8, 0.9), 1e-6, 0.2, False), torch.float64)
    # Five steps on weights of up to 4, each with a few roundings of 2⁻⁵³; the margin is 64.
    torch.testing.assert_close(a, b, rtol=0, atol=5 * 64 * 4 * 2**-53)


def test_adamw_goes_on_from_a_checkpoint_of_torch() -> None:
    model, ours = net().double(), net().double()
    theirs = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(3):
        step(model, theirs)
    ours.load_state_dict(model.state_dict())
    optimizer = do.AdamW(ours.parameters(), lr=1.0)
    optimizer.load_state_dict(theirs.state_dict())
    for _ in range(3):
        step(model, theirs)
        step(ours, optimizer)
    for p, q in zip(model.parameters(), ours.parameters(), strict=True):
        # Six steps of 0.01 on weights of up to 4, with a rounding of 2⁻⁵³ in each of a few
        # operations. In float32 a gradient that is rounding would count against ε = 1e-8.
        torch.testing.assert_close(p, q, rtol=0, atol=6 * 64 * 4 * 2**-53)
    with_maximum = torch.optim.AdamW(net().parameters(), amsgrad=True)
    with pytest.raises(ValueError, match="of method None"):
        optimizer.load_state_dict(with_maximum.state_dict())
    with_penalty = torch.optim.Adam(net().parameters(), weight_decay=0.1).state_dict()
    with_penalty["param_groups"][0]["decoupled_weight_decay"] = False  # as torch has it from 2.7 on
    with pytest.raises(ValueError, match="state is of torch.optim.Adam, whose weight_decay 0.1 is"):
        optimizer.load_state_dict(with_penalty)
    with_penalty["param_groups"][0]["weight_decay"] = 0.0  # then it is the same method
    optimizer.load_state_dict(with_penalty)
