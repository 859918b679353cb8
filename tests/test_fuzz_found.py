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
    "averages of SPlus beside a rest that has none": Case(
        "splus",
        params=(Param((3,)),),
        groups=(Group({"rest": "adamw"}),),
        steps=(Step((Grad(),)), Step((Grad(),), (("averaged",),))),
    ),
    "the drift of covariances of large gradients": Case("splus", steps=steps(Grad(scale=1e15))),
    "the gamma of a zero gradient without eps": Case(
        "adamuon", groups=(Group({"eps": 0.0}),), steps=steps(Grad("zero"))
    ),
}


@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND)
def test_what_once_failed(case: Case) -> None:
    run(case)
