"""What is checked before a release: `make tag TAG=v1.2.3` and `make dist` run this file.

    python tests/release.py tag v1.2.3
    python tests/release.py dist

The first says whether the tag is that of the version, and whether the changelog and the citation
know that version. The second builds both distributions into dist/, has twine check them, installs
the wheels where nothing else is, uses them there, and lets mypy check a program that imports them.
TORCH_INDEX names the index that torch comes from, if it is not pip's own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Distribution → where it is built, and the one package that its wheel has.
DISTRIBUTIONS = {"deva-optim": (".", "deva_optim"), "deva-lab": ("lab", "deva_lab")}

LIBRARY = """
import importlib.util
import torch
from deva_optim import DeVA, __version__, describe, param_groups

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
describe(param_groups(model))
x = torch.randn(32, 4)
losses = []
optimizer = DeVA(model, lr=1e-2)
for _ in range(20):
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
assert importlib.util.find_spec("deva_lab") is None, "the library brings the laboratory"
print("deva_optim", __version__)
"""
# A program of a user: with an untyped package mypy would say import-untyped, and with types that
# are lost on the way, that revealed types are not those.
CONSUMERS = {
    "deva_optim": """
from typing_extensions import assert_type
from torch import nn
from deva_optim import DeVA, param_groups

optimizer = DeVA(param_groups(nn.Linear(2, 2)), lr=1e-3)
assert_type(optimizer, DeVA)
DeVA(nn.Linear(2, 2), lr="fast")  # type: ignore[arg-type]
""",
    "deva_lab": """
from typing_extensions import assert_type
from deva_lab.cli import main

assert_type(main(["--help"]), int)
main(3)  # type: ignore[arg-type]
""",
}


class NotReadyError(Exception):
    """Why there can be no release; the command prints it and exits with code 1."""


def version_of(root: Path = ROOT) -> str:
    """The version, from the one place that has it."""
    text = (root / "src/deva_optim/__init__.py").read_text("utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if found is None:
        raise NotReadyError("src/deva_optim/__init__.py has no __version__")
    return found[1]


def check_tag(tag: str, root: Path = ROOT) -> None:
    """Raise NotReadyError unless version, changelog and citation are those of the tag."""
    version = version_of(root)
    if tag != f"v{version}":
        raise NotReadyError(f"the tag of version {version} must be v{version}, got {tag}")
    changelog = (root / "CHANGELOG.md").read_text("utf-8")
    heading = rf"^## \[{re.escape(version)}\] - (\d{{4}}-\d\d-\d\d)\n(.*?)(?=^## |\Z)"
    found = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise NotReadyError(f"CHANGELOG.md has no '## [{version}] - YYYY-MM-DD'")
    if "\n- " not in found[2]:
        raise NotReadyError(f"CHANGELOG.md says nothing under [{version}]")
    citation = (root / "CITATION.cff").read_text("utf-8").splitlines()
    for line in (f"version: {version}", f"date-released: {found[1]}"):
        if line not in citation:
            raise NotReadyError(f"CITATION.cff must have the line '{line}'")


def check_contents(wheel: Path, package: str) -> None:
    """Raise NotReadyError unless the wheel has that package alone, with its types."""
    names = zipfile.ZipFile(wheel).namelist()
    folders = {name.split("/")[0] for name in names}
    others = sorted(name for name in folders - {package} if not name.endswith(".dist-info"))
    if others:
        raise NotReadyError(f"{wheel.name} must have {package} alone, has {', '.join(others)}")
    for name in (f"{package}/__init__.py", f"{package}/py.typed"):
        if name not in names:
            raise NotReadyError(f"{wheel.name} has no {name}")


def check_types(python: Path, packages: Sequence[str], folder: Path) -> None:
    """Let mypy check a program against the packages that this Python has installed."""
    for package in packages:
        program = folder / f"uses_{package}.py"
        program.write_text(CONSUMERS[package], "utf-8")
        options = ("--strict", "--python-executable", python, "--cache-dir", folder / "mypy")
        _run(sys.executable, "-m", "mypy", *options, program, cwd=folder)


def dist(out: Path = ROOT / "dist") -> None:
    """Build both distributions, and check what a user would get."""
    version = version_of()
    shutil.rmtree(out, ignore_errors=True)
    for folder, package in DISTRIBUTIONS.values():
        _run(sys.executable, "-m", "build", "--outdir", out, ROOT / folder)
        (wheel,) = out.glob(f"{package}-{version}-*.whl")
        check_contents(wheel, package)
    _run(sys.executable, "-m", "twine", "check", "--strict", *sorted(out.iterdir()))
    with tempfile.TemporaryDirectory() as name:
        _use(version, out, Path(name))


def _use(version: str, out: Path, folder: Path) -> None:
    """Install the wheels in an environment of their own, and use them."""
    venv.create(folder / "env", with_pip=True)
    programs = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    python, deva = programs / "python", programs / "deva"
    constraints = ("--constraint", ROOT / "constraints.txt")
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    install = (*pip, "install", "--quiet", "--no-compile", *constraints, "--find-links", out)
    index = os.environ.get("TORCH_INDEX")
    _run(*install, *(("--index-url", index) if index else ()), "torch", cwd=folder)

    _run(*install, *out.glob("deva_optim-*.whl"), cwd=folder)
    _run(*pip, "check", cwd=folder)
    _run(python, "-c", LIBRARY, cwd=folder)
    check_types(python, ["deva_optim"], folder)

    _run(*install, f"deva-optim[lab]=={version}", cwd=folder)  # the extra brings the laboratory
    _run(*pip, "check", cwd=folder)
    _run(deva, "--help", cwd=folder)
    _run(deva, "--version", cwd=folder)
    small = ("--task", "mlp", "--size", "tiny", "--steps", "3", "--optimizers", "deva,adamw")
    _run(deva, "compare", *small, "--out", folder / "runs", cwd=folder)
    check_types(python, ["deva_optim", "deva_lab"], folder)


def _run(*words: str | Path, cwd: Path = ROOT) -> None:
    """Run a program, and say which; the package in src/ must not be found in place of a wheel."""
    print("+", *(w if len(str(w)) < 100 else "…" for w in words), flush=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")}
    ended = subprocess.run([str(word) for word in words], cwd=cwd, env=environment, check=False)
    if ended.returncode:
        raise NotReadyError(f"{Path(words[0]).name} exited with {ended.returncode}")


def main(words: Sequence[str]) -> int:
    """Run the check that is asked for; the exit code is 0 if there can be a release."""
    try:
        if words[:1] == ["tag"] and len(words) == 2:
            check_tag(words[1])
        elif words == ["dist"]:
            dist()
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except NotReadyError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
