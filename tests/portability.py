"""Run the numerical tests as other people's processors would: `python tests/portability.py`.

Rounding depends on the processor: whether a product and a sum are fused, in what order a library
adds, how many threads share a sum. Environment variables make torch, MKL and oneDNN compute on this
machine as on others. Every environment is a pytest of its own; a table says what failed where, and
one failure anywhere makes the exit code 1. `--core` is the short form of it, for every commit.
"""

import argparse
import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).parent

CORE = [
    "core/test_directions.py",
    "core/test_variance.py",
    "optimizers/test_identities.py",
    "optimizers/test_reference.py",
    "test_clipping.py",
    "lab/test_runs.py::test_accumulation_is_a_larger_batch",
]
NUMERICAL = [
    *CORE,
    "core/test_bases.py",
    "core/test_gradients.py",
    "core/test_linalg.py",
    "core/test_step.py",
    "optimizers/test_contract_gradients.py",
    "optimizers/test_contract_layout.py",
    "optimizers/test_contract_precision.py",
    "optimizers/test_contract_step.py",
    "optimizers/test_peers.py",
    "optimizers/test_training.py",
    "test_trajectories.py",
    "lab/test_gpt.py",
    "lab/test_image_models.py",
    "lab/test_quantities.py",
    "lab/test_reproduce_theory.py",
    "lab/test_reproduce_trace.py",
]

ATEN = "ATEN_CPU_CAPABILITY"  # torch's own kernels; `default` has no fused multiply-add
# `MKL_ENABLE_INSTRUCTIONS` is for Intel's processors alone, elsewhere MKL does not read it. What
# `MKL_CBWR` names is a whole family of kernels, and takes effect on any processor.
ENABLE, CBWR = "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"
ONEDNN = "ONEDNN_MAX_CPU_ISA"  # convolutions


@dataclass(frozen=True)
class Environment:
    """What a processor is simulated by."""

    threads: int
    variables: dict[str, str] = field(default_factory=dict)
    core: bool = False

    def __str__(self) -> str:
        settings = [f"{name}={value}" for name, value in self.variables.items()]
        return " ".join([*(settings or ["as it is"]), f"threads={self.threads}"])

    def start(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        """Run this program in the environment."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
        for name in (ATEN, ENABLE, CBWR, ONEDNN):
            ours.pop(name, None)
        # Threads that wait in a loop for their next task would take the cores from the others.
        ours |= {"OMP_WAIT_POLICY": "PASSIVE", "DEVA_TEST_THREADS": str(self.threads)}
        command = [sys.executable, __file__, *arguments]
        return subprocess.run(
            command, env=ours | self.variables, capture_output=True, text=True, check=False
        )


# Every pair of torch's kernels and a number of threads, with each setting of MKL at least once. In
# the core are two that differ in everything from one another, and from the first, as the suite is.
ENVIRONMENTS = [
    Environment(1),
    Environment(2, {CBWR: "AUTO"}),
    Environment(4, {ENABLE: "AVX2"}),
    Environment(1, {ATEN: "avx2", CBWR: "COMPATIBLE"}),
    Environment(2, {ATEN: "avx2", ENABLE: "AVX", ONEDNN: "AVX"}),
    Environment(4, {ATEN: "avx2", CBWR: "AUTO"}, core=True),
    Environment(1, {ATEN: "default"}),
    Environment(2, {ATEN: "default", CBWR: "COMPATIBLE", ONEDNN: "SSE41"}, core=True),
    Environment(4, {ATEN: "default", ENABLE: "SSE4_2", ONEDNN: "SSE41"}),
]


def fingerprint() -> str:
    """Six digits of the bits of a product, an eigenvalue, an update and a convolution.

    Equal in two environments if these compute alike on this machine.
    """
    import torch

    torch.set_num_threads(int(os.environ["DEVA_TEST_THREADS"]))
    torch.manual_seed(0)
    A = torch.randn(200, 300, dtype=torch.float64)
    image, kernel = torch.randn(2, 3, 16, 16), torch.randn(8, 3, 3, 3)
    results = [
        A @ A.mT,
        torch.linalg.eigvalsh(A @ A.mT),
        torch.addcmul(A, A, A),
        A.sum(),
        torch.nn.functional.conv2d(image, kernel),
    ]
    digest = hashlib.sha256()
    for x in results:
        digest.update(x.numpy().tobytes())
    return digest.hexdigest()[:6]


def inside(tests: list[str]) -> int:
    """Run the tests in the environment that this process is in."""
    import pytest

    print(fingerprint(), flush=True)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "--tb=short", *tests]))


def summary(output: str) -> str:
    """Return the last line of pytest without its bars."""
    return output.strip().splitlines()[-1].strip("= ") if output.strip() else "nothing was run"


def main() -> int:
    """Run every environment, as many side by side as there are cores, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--core", action="store_true", help="the short form of it")
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        return inside(arguments.inside)
    tests = [str(TESTS / name) for name in (CORE if arguments.core else NUMERICAL)]
    chosen = [e for e in ENVIRONMENTS if e.core or not arguments.core]
    width = max(len(str(environment)) for environment in chosen)
    failures = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = pool.map(lambda environment: environment.start(["--inside", *tests]), chosen)
        for environment, run in zip(chosen, runs, strict=True):
            bits, _, output = run.stdout.partition("\n")
            result = summary(output or run.stderr)
            print(f"{environment!s:<{width}}  bits {bits}  {result}", flush=True)
            if run.returncode:
                failures.append((environment, output + run.stderr))
    for environment, output in failures:
        print(f"\n{environment}\n{output}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
