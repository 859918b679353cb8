"""The update of a steady step is one graph, whatever the rates and the counts of steps."""

import subprocess
import sys

import pytest
import torch

import deva_optim
from deva_optim import DeVA
from deva_optim.core import linalg, step

CLASSES = [
    *("DeVA", "DeVASinf", "DeVALinf", "Muon", "AdaMuon", "NorMuon", "SOAP", "Shampoo", "SPlus"),
    *("AdamW", "Signum", "Lion"),
]
SHAPES = [(8, 12), (8, 12), (12, 8), (10,), (4, 3, 3, 3), (3, 6, 5)]
STEPS = 24  # two refreshes


def trained(name, compiled, *, shapes=SHAPES, steps=STEPS, fixed_from=STEPS, **options):
    """Weights after some steps, from `fixed_from` on without leave to compile anything."""
    generator = torch.Generator().manual_seed(0)
    new = {"generator": generator, "dtype": torch.float64}
    weights = [torch.nn.Parameter(torch.randn(shape, **new)) for shape in shapes]
    optimizer = getattr(deva_optim, name)(weights, lr=1e-2, compile=compiled, **options)
    for i in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, **new)
        for group in optimizer.param_groups:
            group["lr"], group["weight_decay"] = 1e-2 / (i + 1), 0.01 * i
        with torch.compiler.set_stance("fail_on_recompile" if i >= fixed_from else "default"):
            optimizer.step()
    return weights


@pytest.fixture(params=["host", "device"])
def graphs(request, monkeypatch):
    """Of each update by a graph its method, where the host may look at values and where not."""
    if request.param == "device":
        monkeypatch.setattr(linalg, "host_sees", lambda device: False)
    found, compiled = [], step.compiled

    def watched(b):
        found.append(b.method.name)
        return compiled(b)

    monkeypatch.setattr(step, "compiled", watched)
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_a_graph_computes_the_same_and_is_compiled_once(name, graphs):
    # fullgraph=True makes a graph break an error, and the stance a graph that is compiled anew.
    # After three steps even a matrix of a stack is known to have had a gradient.
    found = trained(name, "eager", fixed_from=3)
    assert len(graphs) >= STEPS - 3
    # a graph takes norms with a scale of their own: some thirty roundings for each of the steps
    for ours, expected in zip(found, trained(name, False), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=STEPS * 30 * 2**-53 * 10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # inductor's
def test_inductor_computes_the_same():
    settings = {"shapes": [(6, 8)], "steps": 4}
    (found,), (expected,) = (trained("DeVA", way, **settings) for way in (True, False))
    # inductor sums in an order of its own, in sums of at most 48 terms
    torch.testing.assert_close(found, expected, rtol=0, atol=4 * 48 * 30 * 2**-53)


def test_a_gradient_that_is_not_finite_rests_in_a_graph_too():
    weight = torch.nn.Parameter(torch.ones(4, 6))
    optimizer = DeVA([weight], compile="eager")
    for i in range(4):
        weight.grad = torch.full((4, 6), torch.nan if i == 2 else float(i + 1))
        if i == 2:
            with pytest.warns(RuntimeWarning, match="not finite"):
                optimizer.step()
        else:
            optimizer.step()
    assert weight.isfinite().all()


def test_from_the_ninth_beta_on_nothing_is_compiled():
    def end(compiled):
        weight = torch.nn.Parameter(torch.ones(3, 7))  # a shape that no other test compiles
        optimizer = deva_optim.Muon([weight], compile=compiled)
        for i in range(12):
            optimizer.param_groups[0]["momentum"] = 0.85 + 0.005 * i
            weight.grad = torch.full((3, 7), float(i + 1)).tril(i - 3)
            optimizer.step()
        return weight.detach()

    with pytest.warns(UserWarning, match="the update of muon .* is no longer compiled") as caught:
        found = end("eager")
    assert len(caught) == 1
    torch.testing.assert_close(found, end(False), rtol=0, atol=12 * 500 * 2**-24)


def test_what_compiles_is_imported_when_it_is_asked_for():
    """torch._dynamo takes seconds to import."""
    code = "import sys, deva_optim; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
