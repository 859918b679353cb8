"""What `deva bench` takes: words for a benchmark, which reads them itself."""

from __future__ import annotations

from typing import Final

from . import Commands

DESCRIPTION: Final = """\
`deva bench`: what a step costs.

    deva bench                        time of a step: ours, a plain Muon, and the peers installed
    deva bench step gpt-768           the same for one set of shapes
    deva bench training               whole training steps, forward and backward included
    deva bench launches               kernels and bytes of a step on an accelerator, counted
    deva bench state                  the memory that optimizers keep for a model, counted
    deva bench ranks                  what each of several ranks computes, keeps and sends

Each has a --help of its own.
"""

BENCHMARKS: Final = {
    "step": """\
Compare the cost of a step: ours, a plain Muon, and the peers that are installed.

    deva bench step                                 what the requirements ask about
    deva bench step gpt-768 --only 'deva-*' muon    some subjects on one set of shapes
    deva bench step --dims 128,256,512 --only deva-short muon     how the cost grows
    deva bench step --task my_task.py --only deva muon    the hidden matrices of your own model
    deva bench step --list                          what there is to choose from

Subjects take turns, round after round, and ratios are taken within rounds. A table and the
requirements that were set are printed; all numbers and a chart are written to runs/bench/.
""",
    "training": """\
Compare whole training steps, forward and backward included, of the laboratory's GPT.

    deva bench training                    16,384 tokens a step, as the requirement says
    deva bench training --size medium --batch 16 --rounds 40

The optimizers take turns, a step each, and ratios are taken within rounds. What an optimizer adds
to a step matters the less, the more tokens the step has.
""",
    "launches": """\
Count what a step asks of an accelerator: kernels launched and bytes moved.

    deva bench launches                    GPT-2 small
    deva bench launches gpt-256 moe        other sets of shapes

Everything is on the meta device, where tensors have shapes and no values: no accelerator is needed,
and a step that looked at a value on the host would fail. The first step, which chooses the bases,
is left out. Bytes are those of operands and results of every operator, as if nothing was cached.
""",
    "state": """\
Count the memory that optimizers keep for the hidden matrices of a model.

    deva bench state                      Llama 3 8B
    deva bench state gpt2-small vit-l     other sets of shapes

The state is made on the meta device, where tensors have shapes and no values: any model fits. A
line has the GiB of a method with `state_dtype` left alone, torch.bfloat16 and "int8".
""",
    "ranks": """\
What each of several ranks computes, keeps and sends in a step, beside what the formula says.

    deva bench ranks                       FSDP2, HSDP and DDP with 1, 2 and 4 processes, by gloo
    deva bench ranks --wire                the same with bfloat16 on the wire
    deva bench ranks --plan                Llama 70B on up to 1,024 ranks, on paper

FLOPs, bytes and collectives are counted, not timed: they are the same on any machine.
""",
}


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        help="time, memory and FLOPs of a step",
        add_help=False,
        prefix_chars="\0",  # so that options are left for the benchmark to read
    )
    parser.add_argument("words_of_bench", nargs="*", metavar="…")
    parser.set_defaults(command="bench", needs=())
