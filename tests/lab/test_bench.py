"""The benchmark counts what it says it counts. No test asserts a time."""

import json
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

import deva_optim as do
from deva_lab.bench import counting, timing
from deva_lab.bench.counting import (
    Flops,
    count_flops,
    peak_bytes,
    products_seconds,
    state_bytes,
)
from deva_lab.bench.subjects import (
    SETS,
    SUBJECTS,
    PlainMuon,
    State,
    Subject,
    matching,
    matrices,
    shape_set,
)
from deva_lab.bench.timing import (
    Case,
    Result,
    SetResult,
    Settings,
    check_memory,
    measure_set,
    random_gradients,
)
from deva_lab.cli import main
from deva_lab.usage import BENCHMARKS, text
from deva_optim.core.methods import METHODS, method_of

TINY = Settings(rounds=2, steps=2, refresh_every=2, warmup=3, gradients=2, peak_size=32)
TINY_OPTIONS = (
    *("--rounds", "2", "--steps", "2", "--refresh-every", "2"),
    *("--warmup", "3", "--peak-size", "32"),
)
ODD = ((5, 7), (7, 5), (6, 6), (2, 9), (3, 4, 5), (3, 5, 5), (8, 3, 3, 3))
HERE = [subject for subject in SUBJECTS.values() if subject.missing is None]
OURS = [subject for subject in HERE if subject.kind == "ours"]


def named(subjects: list[Subject]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("subject", subjects, ids=lambda subject: subject.name)


def quiet(message: str) -> None:
    pass


def bench(options: list[str]) -> int:
    return main(["bench", "step", *options])


# Shapes ------------------------------------------------------------------------------------------


def test_gpt2_small_has_all_its_hidden_matrices() -> None:
    embeddings, positions = 50257 * 768, 1024 * 768
    biases_of_a_block = 3 * 768 + 768 + 4 * 768 + 768
    norms = 25 * 2 * 768
    rest = embeddings + positions + 12 * biases_of_a_block + norms
    assert shape_set("gpt2-small").numel + rest == 124_439_808


def test_resnet20_has_all_its_convolutions() -> None:
    norms, head = 2 * (7 * 16 + 6 * 32 + 6 * 64), 64 * 10 + 10
    assert shape_set("resnet20").numel + norms + head == 269_722


def test_a_llama_block_has_all_its_matrices() -> None:
    embedding, norms = 128_256 * 2048, (2 * 16 + 1) * 2048
    assert 16 * shape_set("llama-1b-block").numel + embedding + norms == 1_235_814_400


def test_vit_large_has_all_its_hidden_matrices() -> None:
    patches = 3 * 16 * 16 * 1024
    biases_and_norms_of_a_block = (3 + 1 + 4 + 1 + 2 * 2) * 1024
    tokens, last_norm, head = (1 + 197 + 1) * 1024, 2 * 1024, 1024 * 1000 + 1000
    rest = 24 * biases_and_norms_of_a_block + tokens + last_norm + head
    assert shape_set("vit-l").shapes[0] == (1024, 3, 16, 16)
    assert math.prod(shape_set("vit-l").shapes[0]) == patches
    assert shape_set("vit-l").numel + rest == 304_326_632


def test_blocks_and_widths_can_be_chosen() -> None:
    assert shape_set("gpt-256").numel == 4 * 12 * 256**2
    assert shape_set("gpt-256:1").numel == shape_set("gpt-256").numel / 4
    assert shape_set("gpt-40").shapes == (*4 * ((40, 40),), (160, 40), (40, 160))


@pytest.mark.parametrize("name", SETS)
def test_matrices_hold_every_number_of_a_set(name: str) -> None:
    for shape in shape_set(name).shapes:
        assert sum(n * m for n, m in matrices(shape)) == math.prod(shape)


# Subjects ----------------------------------------------------------------------------------------


def test_every_method_is_a_subject() -> None:
    param = torch.zeros(3, 3, requires_grad=True)
    groups = [subject.build([param], 2).param_groups[0] for subject in OURS]
    assert {method_of(group).name for group in groups} == set(METHODS) - {"splus-vector"}


def test_subjects_are_chosen_by_name_or_glob() -> None:
    found = matching(["deva-s*", "muon"], SUBJECTS)
    assert found == ["deva-soft", "deva-short", "muon"]


@named([subject for subject in HERE if subject.name != "heavyball-soap"])  # shares its counters
def test_the_formula_gives_the_bytes_of_the_state(subject: Subject) -> None:
    case = Case(subject, random_gradients(ODD, TINY), TINY)
    case.steps(3)
    assert state_bytes(case.optimizer) == subject.state.bytes(case.shapes)


def test_formulas_say_how_many_bytes() -> None:
    assert State("nm + (n+m) + n + 2(n²+m²)").bytes([(3, 5)]) == 4 * (15 + 8 + 3 + 2 * 34)
    assert State("2nm + 2s²", moment_bytes=2).bytes([(3, 5)]) == 2 * 30 + 4 * 2 * 9
    assert [State("s²", square=both).bytes([(3, 3)]) for both in (False, True)] == [36, 72]
    assert State("2nm", moment_bytes=2).formula == "2nm, nm in 2 bytes"


def test_the_yardstick_is_our_muon() -> None:
    shapes = ((6, 6), (6, 6), (4, 9), (9, 4), (3, 11))
    ours = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    plain = [p.detach().clone().requires_grad_() for p in ours]
    pair: list[tuple[Optimizer, list[Tensor]]] = [
        (do.Muon(ours, nesterov=False), ours),
        (PlainMuon(plain), plain),
    ]
    for t in range(5):
        for optimizer, params in pair:
            torch.manual_seed(t)
            for p in params:
                p.grad = torch.randn_like(p)
            optimizer.step()
    for a, b in zip(ours, plain, strict=True):
        # Ours iterates on Gram matrices: the quintics magnify 2⁻⁵³ up to 3.4⁵ ≈ 500 times, and five
        # steps add up. The margin is 8, though a step is far shorter than one.
        torch.testing.assert_close(a, b, rtol=0, atol=8 * 5 * 500 * 2**-53)


def test_gradients_are_shared_by_those_who_take_matrices_alone() -> None:
    gradients = random_gradients(((3, 4, 5), (8, 3, 3, 3)), TINY)
    case = Case(SUBJECTS["plain-muon"], gradients, TINY)
    assert case.shapes == (*3 * ((4, 5),), (8, 27))
    assert case.gradients[0][0].data_ptr() == gradients[0][0].data_ptr()


# Counting ----------------------------------------------------------------------------------------


def test_flops_of_known_products() -> None:
    A, B = torch.ones(2, 3, 5), torch.ones(2, 5, 7)
    C, product = torch.ones(3, 7), Flops(2 * 3 * 5 * 7, 0)
    assert count_flops(lambda: A[0] @ B[0]) == product
    assert count_flops(lambda: C.addmm_(A[0], B[0])) == product
    assert count_flops(lambda: torch.mm(A[0], B[0], out=C)) == product
    assert count_flops(lambda: A @ B) == Flops(2 * product.products, 0)
    assert count_flops(lambda: A + 1) == Flops(0, 0)


def test_flops_of_decompositions_follow_their_formulas() -> None:
    A = torch.eye(6).repeat(2, 1, 1)
    assert count_flops(lambda: torch.linalg.qr(A)) == Flops(0, 2 * 8 * 6**3 // 3)
    assert count_flops(lambda: torch.linalg.eigh(A)) == Flops(0, 2 * 9 * 6**3)
    assert count_flops(lambda: torch.linalg.cholesky(A)) == Flops(0, 2 * 6**3 // 3)
    solve = torch.linalg.solve_triangular
    assert count_flops(lambda: solve(A, A[..., :4], upper=True)) == Flops(0, 2 * 6**2 * 4)


def test_a_muon_step_counts_as_on_paper() -> None:
    case = Case(SUBJECTS["plain-muon"], random_gradients(((4, 6),), TINY), TINY)
    assert count_flops(case.step) == Flops(5 * 2 * (4 * 4 * 6 + 4**3 + 4 * 4 * 6), 0)


def test_peak_of_known_allocations() -> None:
    A = torch.ones(1000)

    def two_at_once() -> None:
        B = A + A
        B = B + A
        del B
        A.add_(A)

    assert peak_bytes(two_at_once) == 8000
    assert peak_bytes(two_at_once, times=3) == 8000
    assert peak_bytes(lambda: A.add_(A)) == 0


@pytest.mark.parametrize("telemetry_every", [0, 1])
def test_a_step_of_deva_needs_less_than_half_of_the_memory_of_a_block(telemetry_every):
    """Of a GPT block as narrow as strips allow, whether telemetry records the step or not."""
    n = 512
    shapes = [(n, n)] * 4 + [(4 * n, n), (n, 4 * n)]
    named = [(f"h.{i}.weight", torch.nn.Parameter(torch.randn(x))) for i, x in enumerate(shapes)]
    optimizer = do.DeVA(named, lr=1e-3, refresh_every=2)
    optimizer.telemetry_every = telemetry_every
    for _, p in named:
        p.grad = torch.randn_like(p)
    optimizer.step()
    weights = sum(p.nbytes for _, p in named)
    # five n×n matrices of the twelve, and vectors
    assert peak_bytes(optimizer.step, times=2) < 0.45 * weights


def test_peak_is_that_of_a_single_run() -> None:
    kept: list[Tensor] = []
    assert peak_bytes(lambda: kept.append(torch.ones(1000)), times=3) == 4000


def test_the_time_in_products_is_a_part_of_the_whole() -> None:
    A = torch.ones(64, 64)
    products, seconds = products_seconds(lambda: A @ A, 3)
    assert 0 < products < seconds
    assert products_seconds(lambda: A + A, 3)[0] == 0


# Statistics --------------------------------------------------------------------------------------


def test_medians_are_taken_over_rounds() -> None:
    rounds = ((1.0, 3.0), (1.0, 5.0), (101.0, 3.0))  # the 101 is a hiccup
    found = made_up({"muon": rounds, "adamw": ((1.0, 1.0),) * 3})
    assert found.results["muon"].worst == 5.0
    assert found.results["muon"].mean == 3.0
    assert found.ratios("muon", "adamw") == [2.0, 3.0, 52.0]
    assert found.ratio("muon", "adamw") == 3.0


def made_up(rounds: dict[str, tuple[tuple[float, float], ...]]) -> SetResult:
    """Results in which the steps of a subject take as long as it is told here."""
    told = {
        name: Result(name, "ours", times, 0.0, 64, 128, "2nm", 128)
        for name, times in rounds.items()
    }
    return SetResult(shape_set("gpt-8"), told, {}, peak=1e9)


# The whole ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_makes_a_table_a_document_and_a_chart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(["gpt-6", *TINY_OPTIONS, "--out", str(tmp_path / "a")]) == 0
    shown = capsys.readouterr().out
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["settings"]["shapes"] == ["gpt-6"]
    assert {"commit", "cpu", "cores", "memory_gb", "threads", "versions"} <= set(
        document["machine"]
    )
    (found,) = document["sets"]
    names = [result["name"] for result in found["results"]]
    assert names == [subject.name for subject in HERE]
    assert set(found["left_out"]) == set(SUBJECTS) - set(names)
    assert all(f"left out: {name}, " in shown for name in found["left_out"])
    for result in found["results"]:
        assert f"\n{result['name']} " in shown
        assert len(result["rounds"]) == len(result["ratios"]) == 2
        assert result["state_bytes"] == result["formula_bytes"] or "heavyball" in result["name"]
        assert result["peak_bytes"] > 0
    ElementTree.parse(tmp_path / "a.svg")


def test_several_sets_are_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["tiny", "tiny-batch", "--only", "muon", "plain-muon", "--no-profile"]
    assert bench([*options, *TINY_OPTIONS, "--out", str(tmp_path / "deep" / "b")]) == 0
    assert "mean ms      tiny  tiny-batch\nmuon" in capsys.readouterr().out
    ElementTree.parse(tmp_path / "deep" / "b.svg")


def test_a_peer_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(params: list[Tensor], **options: object) -> Optimizer:
        raise RuntimeError("no compiler\nand a long story")

    monkeypatch.setattr(torch.optim, "AdamW", broken)
    monkeypatch.setattr(do, "AdamW", broken)
    missing = replace(SUBJECTS["heavyball-soap"], module="not_a_package")
    old = replace(SUBJECTS["torch-muon"], optimizer="NotYet")
    settings = replace(TINY, profile=False)
    subjects = [SUBJECTS["torch-adamw"], missing, old, SUBJECTS["muon"]]
    found = measure_set(shape_set("gpt-4"), subjects, settings, quiet)
    assert list(found.results) == ["muon"]
    assert found.left_out == {
        "heavyball-soap": "not_a_package is not installed",
        "torch-muon": "this version of torch has no NotYet",
        "torch-adamw": "RuntimeError: no compiler",
    }
    with pytest.raises(RuntimeError, match="no compiler"):
        measure_set(shape_set("gpt-4"), [SUBJECTS["adamw"]], settings, quiet)


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "available_bytes", lambda: 10**9)
    with pytest.raises(ValueError, match="vit-l needs .* GB .* 1 GB are free; choose .* vit-l:1"):
        check_memory(shape_set("vit-l"), OURS, TINY)
    check_memory(shape_set("gpt-64"), OURS, TINY)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("stp", "unknown benchmark 'stp', did you mean 'step'? Known are step, launches"),
        ("step --device gpu", "--device gpu cannot be used here"),
        ("step --only moun", "unknown subject 'moun', did you mean 'muon'"),
        ("step gpt2-smal", "unknown shape set 'gpt2-smal', did you mean 'gpt2-small'"),
        ("launches gtp2-small", "unknown shape set 'gtp2-small', did you mean 'gpt2-small'"),
        ("state moe:0", "the number of blocks must be a positive integer, got 'moe:0'"),
        ("step --baseline adam", "unknown baseline 'adam', did you mean 'adamw'"),
        ("step --steps 15", "steps must be a multiple of refresh_every (10), got 15"),
        ("step --rounds 1", "rounds must be at least 2 to have a spread, got 1"),
    ],
)
def test_mistakes_are_named(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_the_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(["--list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*SETS, *SUBJECTS))


# Launches --------------------------------------------------------------------------


@pytest.mark.parametrize("name", counting.LAUNCHED)
def test_launches_do_not_hang_on_the_size_of_a_matrix(name):
    few, some = counting.launches(name, ((6, 6), (4, 9)))
    again, more = counting.launches(name, ((60, 60), (40, 90)))
    assert few == again > 0
    assert more > 50 * some > 0
    assert counting.launches(name, ((6, 6), (4, 9), (5, 7)))[0] > few


# The command ------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [["--list"], ["step", "--list"]])
def test_without_a_name_it_is_the_step(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *argv]) == 0
    assert "gpt2-small" in capsys.readouterr().out


def test_the_command_counts_launches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "launches", "gpt-16:1"]) == 0
    shown = capsys.readouterr().out
    assert "gpt-16:1: 6 parameters" in shown
    assert all(name in shown for name in counting.LAUNCHED)


def test_the_command_counts_state(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "state", "gpt-64:1"]) == 0
    shown = capsys.readouterr().out
    assert "gpt-64:1: 6 parameters" in shown
    assert all(name in shown for name in counting.KEPT)
    shapes = shape_set("gpt-64").shapes
    for name in counting.KEPT:
        assert counting.kept(name, shapes, None) == SUBJECTS[name].state.bytes(shapes)
        assert counting.kept(name, shapes, "int8") < counting.kept(name, shapes, None)


def test_what_is_ours_is_measured_once_more_compiled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = ["--only", "muon", "plain-muon", "--compile", "eager"]
    assert bench(["gpt-6", *TINY_OPTIONS, *only, "--out", str(tmp_path / "a")]) == 0
    (found,) = json.loads((tmp_path / "a.json").read_text())["sets"]
    names = [result["name"] for result in found["results"]]
    assert names == ["muon", "plain-muon", "muon-compiled"]
    assert "muon-compiled" in capsys.readouterr().out


def test_every_step_is_timed() -> None:
    case = Case(SUBJECTS["muon"], random_gradients([(4, 6)], TINY), TINY)
    assert case.steps(3) == case.seconds


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"deva bench {name}" in shown for name in BENCHMARKS)


def test_settings_are_options_with_a_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "step", "--help"])
    shown = capsys.readouterr().out
    assert text("bench-step") in shown
    assert "  --refresh-every " in shown
