"""What every entry of the race has in common, and the rules in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..models.gpt import SIZES
from ..render import listed
from ..settings import RunSettings


@dataclass(frozen=True)
class Rules:
    """The task and the terms.

    Attributes:
        base: The run of every entry but for its optimizer, rate, seed and length.
        tuning_seeds: What learning rates are chosen by.
        final_seeds: What entries are judged by; no choice may depend on them.
        budget: How many learning rates an entry is tuned with, each on all tuning seeds.
        muons: The entries of which the best one, by tuning, sets the target.
    """

    base: RunSettings
    tuning_seeds: tuple[int, ...] = (0,)
    final_seeds: tuple[int, ...] = (101, 102, 103)
    budget: int = 4
    muons: tuple[str, ...] = ("muon-light", "muon-quick")


RACE: Final = Rules(
    RunSettings(
        task="gpt",
        size="small",
        data="fineweb-sample",
        vocabulary=512,
        optimizer="",
        lr=0.0,
        seed=0,
        steps=600,
        batch=8,
        decay=0.4,
        evaluate_every=25,
    )
)


def rules_text(rules: Rules = RACE) -> str:
    """The rules, as Markdown."""
    base, size = rules.base, SIZES[rules.base.size]
    return _RULES.format(
        layers=size.layers,
        width=size.width,
        vocabulary=base.vocabulary,
        data=base.data,
        steps=base.steps,
        batch=base.batch,
        context=size.context,
        tokens=base.batch * size.context,
        decay=base.decay,
        every=base.evaluate_every,
        budget=rules.budget,
        tuning=listed(map(str, rules.tuning_seeds)),
        final=listed(map(str, rules.final_seeds)),
        muons=listed(rules.muons),
    )


_RULES: Final = """\
**The task.** The laboratory's GPT with {layers} layers of width {width} on `{data}` in a byte-level
BPE of {vocabulary}; {steps} steps of {batch} × {context} = {tokens:,} tokens. The rate is constant
and then falls to zero over the last {decay:.0%} of the steps. The validation loss is taken every
{every} steps.

**The score** is the number of tokens at which an entry's validation loss, the mean over the final
seeds, reaches the target, as a share of the tokens that Muon took. The target is the final loss of
Muon: of the entries {muons} the one that tuning finds best. Between two
evaluations the curve is a line. An entry may have a shorter schedule of its own, and then counts by
what it took of that. Lower is better. Times are scaled so that the model's part of a step, the same
work in all runs, takes the same in all of them.

**The terms.**

1. Every entry is tuned with {budget} learning rates on seed {tuning}: three a factor of two apart
   about where it starts, then one by one, beyond an end that is best, else into the middle (of
   logarithms) of the wider gap beside the best. No other setting is tuned: another setting is
   another entry.
2. `deva race freeze` writes down the rate of each entry and which Muon sets the target, with date
   and commit. What is frozen is not changed any more.
3. The final seeds, {final}, are run at the frozen rates alone and used for no choice. An entry
   frozen when final seeds of others had been run is marked as late.
4. Seed by seed, all entries start from the same weights and see the same batches.
5. An order is claimed where a paired t-test over the final seeds carries it: of final losses, or
   of tokens to the target where schedules differ in length. With three seeds that takes
   |t| > 4.3 for p < 0.05, and p knows nothing of how many entries were tried.
6. All runs, lost ones too, stay in the file of results.
"""
