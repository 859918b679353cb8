"""Verdicts on made-up results: what holds, what is within the noise, what does not hold."""

import math
import re

import pytest

from deva_lab.reproduce import losses, tables
from deva_lab.reproduce.experiment import Trained
from deva_lab.reproduce.experiments import EXPERIMENTS, Entry
from deva_lab.reproduce.measures import (
    Finding,
    Measured,
    at_one_speed,
    below,
    compared,
    gap,
    noise,
    order,
    overall,
    sentence,
    speeds,
    throughout,
)
from deva_lab.reproduce.paper import (
    DEVA,
    FACTORED,
    INSTANTANEOUS,
    MUON,
    NAMES,
    PRINTED,
    SETUPS,
    SOAP,
    UNSIGNED,
)
from deva_lab.run.entrants import Entrant
from lab.made_results import result_of

# Claims -------------------------------------------------------------------------------------------


def finding(verdict):
    return Finding(verdict, "", 0.0)


@pytest.mark.parametrize(
    ("gap", "noise", "verdict"),
    [
        (0.02, 0.01, "holds"),
        (0.005, 0.01, "open"),
        (-0.005, 0.01, "open"),
        (-0.02, 0.01, "does not hold"),
        (0.001, None, "holds"),
        (0.0, None, "does not hold"),
        (math.inf, 0.01, "holds"),
        (-math.inf, 0.01, "does not hold"),
        (math.nan, 0.01, "does not hold"),
    ],
)
def test_a_difference_counts_if_it_exceeds_the_noise(gap, noise, verdict):
    assert compared(gap, noise=noise).verdict == verdict


@pytest.mark.parametrize(
    ("verdicts", "whole", "words"),
    [
        (["holds", "holds"], "holds", "holds: 2 of 2 claims hold"),
        (["holds", "open"], "holds in part", "holds in part: 1 of 2 claims holds, 1 of 2"),
        (["holds", "does not hold"], "holds in part", "1 of 2 claims does not hold"),
        (["holds in part"], "holds in part", "holds in part: 1 of 1"),
        (["open", "open"], "open", "does not hold at this scale: 2 of 2 claims are within"),
        (["open", "does not hold"], "does not hold", "does not hold at this scale: 1 of 2"),
        (["does not hold"], "does not hold", "does not hold at this scale: 1 of 1"),
    ],
)
def test_a_verdict_is_made_of_its_claims(verdicts, whole, words):
    findings = [finding(verdict) for verdict in verdicts]
    assert overall(findings) == whole
    assert words in sentence(findings)
    assert throughout(findings).verdict == whole


def test_methods_are_compared_seed_by_seed():
    """Seeds differ by far more than methods do, and share that difference."""
    one = Measured({0: 3.0, 1: 3.5, 2: 4.0})
    other = Measured({0: 3.02, 1: 3.51, 2: 4.03})
    assert gap(one, other) == pytest.approx(0.02)
    assert noise(one, other) == pytest.approx(0.01)
    assert below(one, other).verdict == "holds"
    assert below(other, one).verdict == "does not hold"
    assert below(one, Measured({0: 3.02, 1: 3.49, 2: 4.0})).verdict == "open"


def test_a_single_seed_is_judged_by_the_noise_of_others():
    one, other = Measured({0: 3.0}), Measured({0: 3.02, 1: 9.0})
    assert gap(one, other) == pytest.approx(0.02)  # the seed that both have
    assert below(one, other).verdict == "holds"
    assert below(one, other, spread=0.03).verdict == "open"


def test_runs_that_diverged_on_either_side_decide_nothing():
    """One method diverged with one seed, the other with another: neither is below the other."""
    one, other = Measured({0: math.inf, 1: 3.0}), Measured({0: 3.0, 1: math.inf})
    assert math.isnan(gap(one, other))
    assert below(one, other).verdict == below(other, one).verdict == "does not hold"


def test_orders_tell_what_is_within_the_noise():
    values = {
        "c": Measured({0: 3.0, 1: 3.02}),
        "b": Measured({0: 3.01, 1: 3.0}),
        "a": Measured({0: 2.0, 1: 2.1}),
    }
    assert order(values) == "a < b ≈ c"
    assert order({"a": Measured({0: 1.0}), "b": Measured({0: math.inf})}) == "a < b"


def test_what_diverged_is_said_so():
    assert Measured({0: 3.0, 1: math.inf}).text() == "diverged"
    assert Measured({0: 3.0, 1: math.inf}).spread is None


# Experiments, on the paper's own numbers ----------------------------------------------------------

LOSS = {MUON: 3.305, SOAP: 3.304, DEVA: 3.271, UNSIGNED: 3.269, FACTORED: 3.309,
        INSTANTANEOUS: 3.270}  # fmt: skip
TIME = {"muon": 10.72, "soap": 15.79, "deva-sinf": 16.49}


def paper_loss(run):
    """What the paper has for a run, or something of its kind where it prints nothing."""
    entrant = Entrant.parse(run.optimizer)
    options = dict(entrant.options)
    if run.accumulate > 1:
        worse = {"soap": 0.06, "muon": 0.03, "deva-sinf": 0.02}[entrant.name]
        return paper_loss(run.changed(accumulate=1)) + worse * math.log2(run.accumulate)
    if run.lr != 0.01:
        rates, printed = (PRINTED["table-lr"][name] for name in ("rate", NAMES[run.optimizer]))
        return printed[rates.index(run.lr / 10)]
    if "betas" in options and entrant.name == "deva-sinf":
        decays, printed = PRINTED["table-beta3"].values()
        return printed[decays.index(options["betas"][2])]
    if "refresh_every" in options:
        return 3.271 + (3.32 - 3.271) * (entrant.name == "soap")
    return LOSS.get(run.optimizer, 3.4)


def paper_time(run):
    """Milliseconds of the optimizer and of the model in a step."""
    entrant = Entrant.parse(run.optimizer)
    rare = 10 / dict(entrant.options).get("refresh_every", 10)
    optimizer = TIME.get(entrant.name, 10.0) - 10 + 5 * rare
    return optimizer, 10.0 * run.accumulate


def made(run, loss, milliseconds=paper_time, telemetry=None):
    optimizer, model = milliseconds(run)
    end = loss(run) + 0.01 * run.seed  # a seed is harder or easier for all
    steps = [0, run.steps // 2, run.steps]
    found = result_of(
        run,
        steps,
        units=run.batch * 256 * run.accumulate,
        optimizer_ms=optimizer,
        model_ms=model,
        train_loss=[None, end + 0.4, end],
        loss=[6.2, end + 0.5, end],
    )
    return found if telemetry is None else {**found, "telemetry": telemetry}


def shown(name, folder, loss=paper_loss, **options):
    experiment = EXPERIMENTS[name]
    assert isinstance(experiment, Trained)
    results = [made(run, loss, **options) for run in experiment.runs("cpu", "python")]
    return experiment.show(results, folder)


@pytest.mark.parametrize(
    "name",
    ["fig-nanogpt", "table-nanogpt", "table-lr", "fig-batch", "fig-freq", "fig-variants",
     "table-variants"],
)  # fmt: skip
def test_the_paper_s_own_numbers_bear_out_its_claims(name, tmp_path):
    found = shown(name, tmp_path)
    assert found.verdict.startswith("holds: "), found.text
    assert found.text.count(" | holds | ") == int(found.verdict.split()[1])  # a row a claim
    if name.startswith("fig-"):
        assert [path.name for path in found.figures] == [f"{name}.png", f"{name}.svg"]
        assert all(path.stat().st_size > 10_000 for path in found.figures)
        assert found.caption


def test_times_are_brought_to_one_speed_by_the_work_that_is_the_same():
    """A run on a machine half as fast, and one of twice the batch, agree with the one before."""
    run = SETUPS["gpt", "cpu"].base.changed(optimizer=MUON)
    usual, slow, large = (made(run, paper_loss) for _ in range(3))
    slow["mean_milliseconds"] = {k: 2 * v for k, v in usual["mean_milliseconds"].items()}
    slow["curve"] = {**slow["curve"], "seconds": [2 * s for s in usual["curve"]["seconds"]]}
    large["mean_milliseconds"] = {**usual["mean_milliseconds"]}
    large["mean_milliseconds"]["model"] *= 2
    large["units"] *= 2
    first, second, third = at_one_speed([usual, slow, large])
    assert first == usual
    assert second == first
    assert third == large
    none = {**usual, "mean_milliseconds": {"model": 0.0, "optimizer": 0.0, "data": 0.0}}
    assert at_one_speed([none]) == [none]  # it diverged before its first step
    low, high = (usual["mean_milliseconds"]["model"] / usual["units"] * 1000 * k for k in (1, 2))
    assert f"took from {low:.0f} to {high:.0f} ms" in speeds([usual, slow, large])


def test_the_paper_s_table_of_beta3_is_above_one_entry_of_soap(tmp_path):
    """All are below SOAP's best of 3.2769; here SOAP has 3.304 at the usual rate, not 3.2808."""
    found = shown("table-beta3", tmp_path)
    assert found.verdict.startswith("holds: ")
    assert "| paper | 3.2719 | 3.2687 | 3.2743 | 3.2749 | 3.2723 |" in found.text


def test_muon_has_its_best_rate_inside_the_paper_s_grid_by_a_hair(tmp_path):
    """3.2804 against 3.2819 at the end of the grid, and no noise among the made-up seeds."""
    assert shown("fig-lr", tmp_path).verdict.startswith("holds: ")


@pytest.mark.parametrize("name", ["fig-nanogpt", "fig-variants"])
def test_where_all_is_the_other_way_round_nothing_holds(name, tmp_path):
    found = shown(name, tmp_path, lambda run: 6.6 - paper_loss(run))
    assert found.verdict.startswith("does not hold at this scale: ")


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("fig-nanogpt", "Scale: a GPT of 983k parameters sees 410k tokens in 200 steps here, in "),
        ("table-nanogpt", "Scale: a GPT of 983k"),
        ("fig-lr", "Scale: a GPT of 983k"),
        ("table-lr", "Scale: a GPT of 983k"),
        (
            "table-beta3",
            "Steps: β₃ = 0.9875 averages over 80 steps, and a run here has 200 of them",
        ),
        ("fig-batch", "Steps: with 4 batches in a step a run here has 50 steps"),
        ("fig-freq", "Steps: in a run here, of 200 steps, bases are renewed 1 to 20 times"),
        ("fig-variants", "Scale: a GPT of 983k"),
        ("table-variants", "Scale: a GPT of 983k"),
    ],
)
def test_a_verdict_that_is_not_the_paper_s_says_why_first(name, begins, tmp_path):
    found = shown(name, tmp_path, lambda run: 6.6 - paper_loss(run))
    assert found.why.startswith(begins)
    text = Entry(EXPERIMENTS[name], {"scale": "cpu"}, found).verdict
    assert re.match(r"\*\*Verdict\*\*: (holds in part|does not hold at this scale)\. S", text)
    assert f"`deva reproduce {name} --scale paper` trains it at the paper's own scale." in text
    # at that scale itself it is not for want of steps
    text = Entry(EXPERIMENTS[name], {"scale": "paper"}, found).verdict
    assert "The authors' own setting: " in text
    assert begins not in text


def test_a_verdict_that_is_the_paper_s_needs_no_reason(tmp_path):
    found = shown("table-nanogpt", tmp_path)
    text = Entry(EXPERIMENTS["table-nanogpt"], {"scale": "cpu"}, found).verdict
    assert text == "**Verdict**: holds: 5 of 5 claims hold."


def test_a_table_that_holds_in_part_says_of_what(tmp_path):
    """DeVA-S∞ at SOAP's loss: below Muon by a seed's difference of zero, not below SOAP."""
    found = shown(
        "table-nanogpt", tmp_path, lambda run: 3.304 if run.optimizer == DEVA else paper_loss(run)
    )
    assert found.verdict.startswith("holds in part: 4 of 5 claims hold")
    assert "in the paper DeVA-S∞ < SOAP < Muon" in found.text


def test_within_the_noise_no_order_is_claimed(tmp_path):
    def wavering(run):
        return paper_loss(run) + (0.2 * (run.seed - 1) if run.optimizer == DEVA else 0.0)

    found = shown("table-nanogpt", tmp_path, wavering)
    assert "2 of 5 claims are within the noise" in found.verdict


@pytest.mark.parametrize(
    "name", ["fig-nanogpt", "table-nanogpt", "fig-lr", "table-lr", "fig-batch"]
)
def test_a_run_that_diverged_does_not_break_a_page(name, tmp_path):
    experiment = EXPERIMENTS[name]
    results = [made(run, paper_loss) for run in experiment.runs("cpu", "python")]
    for result in results:
        if result["label"] == SOAP and result["settings"]["seed"] == 0:
            result["status"] = "diverged"
            result["curve"] = {key: column[:2] for key, column in result["curve"].items()}
            result["curve"]["loss"][-1] = None
    found = experiment.show(results, tmp_path)
    assert found.verdict


# Γ ------------------------------------------------------------------------------------------------


def recorded(rows, size="small"):
    names = losses.layers(size)
    return [
        {
            "step": step,
            "matrices": {
                ours: {"gamma_norm": row[index]}
                for (ours, _), row in zip(names.values(), rows, strict=True)
            },
        }
        for index, step in enumerate((5, 10, 50, 100, 200))
    ]


def test_the_paper_s_norms_peak_early_and_settle(tmp_path):
    rows = [row for name, row in PRINTED["table-snr"].items() if name != "tokens"]
    found = shown("table-snr", tmp_path, telemetry=recorded(rows))
    assert found.verdict == "holds: 2 of 2 claims hold"
    assert "| `block.3.attn.c_proj` | 373.4 (2.92) | **1210.6 (9.46)** |" in found.text
    assert "| `block.0.mlp.c_proj` | **1973.9 (1.29)** |" in found.text


def test_norms_that_grow_do_not(tmp_path):
    found = shown("table-snr", tmp_path, telemetry=recorded([(1.0, 2.0, 3.0, 4.0, 5.0)] * 4))
    assert found.verdict.startswith("does not hold at this scale: 2 of 2")
    assert found.why.startswith("Steps: the paper looks at Γ after 5M to 500M tokens")


# The tables of settings ---------------------------------------------------------------------------


def test_hyper_parameters_of_the_paper_s_scale_are_those_of_its_table(tmp_path):
    results = tables.compute_hyper({})
    found = tables.show_hyper(results, tmp_path)
    assert found.verdict.startswith("holds: "), found.text
    sizes = {title: len(table["methods"]) for title, table in results.items()}
    assert sizes == {"NanoGPT": 6, "ViT-L/16": 5, "ResNet-20": 7}
    results["NanoGPT"]["methods"]["SOAP"]["decay"] = 0.01
    results["NanoGPT"]["parameters"] = 124_000_000
    found = tables.show_hyper(results, tmp_path)
    assert found.verdict == "holds in part: 2 of 4 claims hold, 2 of 4 claims do not hold"
    assert "SOAP decay: 0.01 for 0.1" in found.text
    assert "0.01 (0.1)" in found.text


def test_the_table_of_methods_has_one_misprint(tmp_path):
    results = tables.compute_methods({})
    assert results["scaling"]["DeVA-S∞"] == pytest.approx(10**0.25 - 1)  # as printed: σ^(1/4)
    assert results["scaling"][tables.REPAIRED] < tables.ROUNDING
    found = tables.show_methods(results, tmp_path)
    assert found.verdict == "holds in part: 6 of 7 claims hold, 1 of 7 claims does not hold"
    assert found.why.startswith("The authors' own table: ")
