"""Faults that the fuzzer has found, each as the smallest case that had it."""

import pytest
import torch

from fuzz import Case, Grad, Group, Param, Step, run


def steps(*grads: Grad) -> tuple[Step, ...]:
    return tuple(Step((grad,), seed=i) for i, grad in enumerate(grads))


FOUND = {
    "a tiny gradient under DeVA": Case("deva-sinf", steps=steps(Grad(scale=1e-30))),
    "a tiny gradient under polar express": Case(
        "muon-polar-express", steps=steps(Grad(scale=1e-30))
    ),
    "a denormal gradient is a zero one": Case("deva", steps=steps(Grad(), Grad(scale=1e-40))),
    "a zero gradient after a normal one": Case("muon", steps=steps(Grad(), Grad("zero"))),
    "a gradient whose square overflows": Case("deva-linf", steps=steps(Grad(scale=1e25))),
    # M was turned out of the basis and back into it, although the basis stayed
    "a refresh in a step that is left out": Case(
        "soap",
        groups=(Group({"refresh_every": 1}),),
        steps=steps(Grad(), Grad(), Grad(), Grad("nan")),
        path="device",
    ),
    # the squares fit float64, in which the step is computed, and not float32, in which V is kept
    "squares beyond the dtype of the state": Case(
        "adamw",
        params=(Param((), torch.float64),),
        groups=(Group({"state_dtype": torch.float32}),),
        steps=steps(Grad(scale=1e30)),
    ),
    # its norm was taken in its own precision, and the step in that of the weight
    "a gradient in float64 of a weight in float32": Case(
        "shampoo-ungrafted", steps=steps(Grad(scale=3e38, dtype=torch.float64))
    ),
    "a gradient in float64 that float32 cannot hold": Case(
        "muon", steps=steps(Grad(scale=1e100, dtype=torch.float64))
    ),
    "one huge entry under Shampoo": Case("shampoo", steps=steps(Grad("one-entry", 1e30))),
    "a tiny gradient without eps": Case(
        "deva-sinf-nesterov",
        params=(Param((2, 3), seed=354753),),
        groups=(Group({"betas": (0.1, 0.5), "eps": 0.0}),),
        steps=(Step((Grad(scale=1e-30),), seed=814957),),
    ),
    "a huge gradient that only chooses the basis": Case(
        "deva-sinf-instantaneous",
        params=(Param((2, 4, 3), seed=423644),),
        groups=(Group({"skip_first": True, "max_dim": 2, "split": 2}),),
        steps=(Step((Grad(scale=3e38),), seed=368602),),
    ),
    "a zero matrix among tiny ones": Case(
        "splus",
        params=(Param((2, 3, 4)),),
        steps=steps(Grad("zero-matrix", 1e-10)),
        path="device",
    ),
    "a bad gradient after a zero one": Case(
        "deva-sinf-factored",
        params=(Param((3, 4, 4)),),
        steps=steps(Grad("zero"), Grad("nan")),
        path="device",
    ),
    "a refresh while a matrix rests": Case(
        "deva-sinf-factored",
        groups=(Group({"refresh_every": 1}),),
        steps=steps(Grad(), Grad("zero")),
        path="device",
    ),
    "averages of SPlus beside a rest that has none": Case(
        "splus",
        params=(Param((3,)),),
        groups=(Group({"rest": "adamw"}),),
        steps=(Step((Grad(),)), Step((Grad(),), (("averaged",),))),
    ),
    "the drift of covariances of large gradients": Case("splus", steps=steps(Grad(scale=1e15))),
    "the drift where gradients have grown": Case(
        "deva", steps=steps(Grad(scale=1e-19), Grad()), path="device"
    ),
    "the gamma of a zero gradient without eps": Case(
        "adamuon", groups=(Group({"eps": 0.0}),), steps=steps(Grad("zero"))
    ),
    "the gamma of a huge gradient with zero rows": Case(
        "deva-sinf-factored",
        params=(Param((2, 2), seed=731691),),
        groups=(Group({"state_dtype": torch.bfloat16, "momentum": 0.5}),),
        steps=(Step((Grad("zero-rows", 3e38),), seed=787567),),
    ),
    # its norm overflowed, although its units could hold it
    "a gradient whose square overflows in float64, on a device": Case(
        "lion",
        params=(Param((2, 3), torch.float64, seed=335395),),
        steps=(Step((Grad(scale=1e100),), seed=516717), Step((Grad(scale=1e154),), seed=522898)),
        path="device",
    ),
    # a momentum that is kept in the basis was written onto itself
    "a refresh of matrices that have no basis": Case(
        "soap",
        params=(Param((1, 3, 3), seed=829976),),
        groups=(Group({"refresh_every": 1, "max_dim": 2}),),
        steps=steps(Grad(), Grad(), Grad()),
    ),
    # its rows were divided by the variance of another basis, and the update by zero
    "a zero gradient whose basis has been rounded": Case(
        "deva-sinf-factored",
        params=(Param((2, 4, 3), seed=56224),),
        groups=(Group({"max_dim": 2, "state_dtype": "int8", "split": 2}),),
        steps=(
            Step((Grad("zero-columns", 1e25),), seed=858264),
            Step((Grad(scale=1e-45),), seed=134610),
        ),
        path="device",
    ),
    # after it matrices without units got some, but not in a run that was reloaded
    "a checkpoint after a gradient that is not finite, on a device": Case(
        "muon-polar-express",
        params=(Param((3, 4, 4), seed=599832),),
        steps=(
            Step((Grad("one-entry"),), seed=561017),
            Step((Grad("inf"),), seed=200045),
            Step((Grad(),), (("save",),), seed=620278),
        ),
        path="device",
    ),
    # r was divided by V before it was multiplied by c
    "norms of rows and columns that are far apart": Case(
        "deva-sinf-short",
        params=(Param((2, 4, 3), seed=91883),),
        groups=(Group({"eps": 0.0, "split": 2, "momentum": 0.0}),),
        steps=(Step((Grad(),), seed=90277), Step((Grad("spread"),), seed=762119)),
    ),
    # the limits of all were those of float32
    "parameters in different units, on a device": Case(
        "deva-linf-nesterov",
        params=(Param((), torch.float64, seed=530608), Param((), torch.float64, 1, seed=521096)),
        groups=(Group(), Group()),
        steps=(
            Step((Grad(), Grad()), seed=844411),
            Step((Grad(scale=1e300), Grad()), (("add", 1),), seed=973778),
        ),
        path="device",
    ),
    # the smallest number of all was that of the first
    "parameters of different precision, on a device": Case(
        "muon-original",
        params=(Param((), torch.float64, seed=681323), Param((2, 2), seed=322207)),
        steps=(
            Step((Grad(), Grad()), seed=430548),
            Step((Grad(dtype=torch.float32), Grad(scale=1e-40)), seed=518916),
        ),
        path="device",
    ),
}


@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND)
def test_what_once_failed(case: Case) -> None:
    run(case)
