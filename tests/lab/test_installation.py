"""The command where packages are missing: it gives help at once, and says what to install."""

import os
import re
import subprocess
import sys
from configparser import RawConfigParser
from importlib.resources import files
from pathlib import Path

import pytest

from deva_lab import cli
from deva_lab.commands.race import STAGES
from deva_lab.errors import EXTRAS, UsageError, require
from deva_lab.usage import BENCHMARKS, text
from helpers import LAB, PROJECT

COMMANDS = (
    *("compare", "train", "methods", "bench", "report", "data", "reproduce", "race"),
    "completion",
)
# What `deva --help` does without.
PACKAGES = ("torch", "numpy", "matplotlib", "rich", "jinja2", "scipy", "tokenizers", "zstandard")
# Python imports a module of this name when it starts. What is hidden is not found, as if it were
# not installed.
HIDING = """
import os
import sys
from importlib.machinery import PathFinder


class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["HIDDEN"].split(","):
            return None
        return super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""


@pytest.fixture
def deva_without(tmp_path: Path):
    """Runs `deva` in a process of its own that does not find some modules."""
    (tmp_path / "sitecustomize.py").write_text(HIDING)

    def run(hidden, *words: str, encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
        paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
        return subprocess.run(
            [sys.executable, "-m", "deva_lab", *words],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "PYTHONIOENCODING": encoding,
                "HIDDEN": ",".join(hidden),
            },
            cwd=tmp_path,
            capture_output=True,
            encoding=encoding,
            timeout=120,
            check=False,
        )

    return run


def test_what_is_hidden_is_not_found(deva_without):
    """Without this, the tests below would show nothing."""
    ended = deva_without(["torch"], "methods")
    assert ended.returncode == 1
    assert "No module named 'torch'" in ended.stderr


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_needs_the_standard_library_alone(command, deva_without):
    ended = deva_without(PACKAGES, *command.split(), "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"deva {command}".strip() in ended.stdout


def test_help_is_printed_in_any_encoding(deva_without):
    ended = deva_without([], "compare", "--help", encoding="ascii")
    assert ended.returncode == 0, ended.stderr
    assert "9 ? 9 matrix" in " ".join(ended.stdout.split())


def test_help_names_every_command(deva_without):
    said = deva_without(PACKAGES, "--help").stdout
    assert all(re.search(rf"^ +{command}\b", said, re.MULTILINE) for command in COMMANDS)


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        ("compare --data fineweb", "datasets", "hub"),
        ("compare --task mlp --tensorboard", "tensorboard", "tensorboard"),
        ("compare --task mlp --log wandb", "wandb", "wandb"),
        ("compare --task mlp --log mlflow", "mlflow", "mlflow"),
        ("compare --task mlp --launcher ray", "ray", "ray"),
        ("race --launcher slurm", "submitit", "slurm"),
        ("train --task mlp --log mlflow", "sqlalchemy", "mlflow"),
        ("data prepare fineweb --out shards", "datasets", "hub"),
    ],
)
def test_a_missing_package_is_named_before_anything_begins(
    words, package, extra, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEVA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(words.split()) == 2
    remedy = f'pip install "deva-optim[{extra}]"'
    assert capsys.readouterr().err == f"deva: the package {package} is not installed: {remedy}\n"
    assert not list(tmp_path.iterdir())


def test_extras_are_those_of_the_project():
    asked = {
        extra: {
            re.split(r"[<>=\[]", requirement)[0].removesuffix("-skinny") for requirement in all_
        }
        for extra, all_ in LAB["optional-dependencies"].items()
    }
    assert {extra: set(modules) - {"pyarrow"} for extra, modules in EXTRAS.items()} == asked


def test_the_library_has_the_extras_of_the_laboratory():
    """So that one name is enough: `pip install "deva-optim[hub]"`."""
    ours = PROJECT["optional-dependencies"]
    assert ours["lab"] == ["deva-lab"]
    assert {name: ours[name] for name in LAB["optional-dependencies"]} == {
        name: [f"deva-lab[{name}]"] for name in LAB["optional-dependencies"]
    }


def test_a_folder_with_the_name_of_a_package_is_no_package(tmp_path, monkeypatch, capsys):
    (tmp_path / "wandb" / "wandb").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "wandb")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "wandb")])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(UsageError, match="the package wandb is not installed"):
        require("wandb")


# --- What the help says is what there is ---------------------------------------------------------


def test_the_table_of_options_has_nothing_that_no_command_takes():
    table = RawConfigParser(delimiters="=")
    table.read_string(files("deva_lab.usage").joinpath("options.ini").read_text("utf-8"))
    groups = {group for told in table.values() for group in told.get("groups", "").split()}
    known = {*cli.COMMANDS, *groups, "data prepare", *(f"bench {name}" for name in BENCHMARKS)}
    assert {section.partition(": ")[0] for section in table.sections()} <= known
    texts = {path.name for path in files("deva_lab.usage").joinpath("texts").iterdir()}
    names = {*cli.COMMANDS, *(f"bench-{name}" for name in BENCHMARKS)}
    assert texts == {f"{name}.txt" for name in names}


def test_the_help_of_the_race_has_every_stage():
    named = set(re.findall(r"^  deva race (\w+)", text("race"), re.MULTILINE))
    assert named == set(STAGES)
