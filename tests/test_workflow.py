"""Continuous integration runs on what pyproject.toml says that the project runs on."""

import itertools
import re
from typing import Any

import pytest
import yaml

from helpers import PROJECT, ROOT
from portability import NUMERICAL, TESTS

WORKFLOW = ROOT / ".github/workflows/ci.yml"
CLASSIFIER = "Programming Language :: Python :: "


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    """The jobs of the workflow by name."""
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]
    return found


def rows_of(jobs: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Every system, Python and torch that the tests run on."""
    matrix = jobs["test"]["strategy"]["matrix"]
    product = itertools.product(matrix["os"], matrix["python"], matrix["torch"])
    return {*product, *((row["os"], row["python"], row["torch"]) for row in matrix["include"])}


def commands(job: dict[str, Any]) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


def test_every_python_of_the_classifiers_is_tested_on_every_system(jobs: dict[str, Any]) -> None:
    named = {c.removeprefix(CLASSIFIER) for c in PROJECT["classifiers"] if CLASSIFIER in c} - {"3"}
    systems = ("ubuntu-latest", "macos-latest", "windows-latest")
    wanted = set(itertools.product(systems, named, ["newest"]))
    assert wanted == {row for row in rows_of(jobs) if row[2] == "newest"}
    oldest = min(named, key=lambda version: int(version.split(".")[1]))
    assert PROJECT["requires-python"] == f">={oldest}"


def test_the_oldest_torch_is_tested_on_every_system_with_the_oldest_python(
    jobs: dict[str, Any],
) -> None:
    (torch,) = PROJECT["dependencies"]  # the library depends on nothing else
    oldest_torch = torch.removeprefix("torch>=")
    oldest_python = PROJECT["requires-python"].removeprefix(">=")
    others = {row for row in rows_of(jobs) if row[2] != "newest"}
    assert {row[2] for row in others} == {oldest_torch}
    systems = {row[0] for row in rows_of(jobs)}
    assert {(system, oldest_python, oldest_torch) for system in systems} <= others


def test_the_linters_are_those_of_make_lint(jobs: dict[str, Any]) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    for line in recipe[1].splitlines():
        assert line.strip().removeprefix("$(BIN)/") in commands(jobs["lint"]).splitlines()


def test_the_package_is_built_and_run_where_nothing_else_is(jobs: dict[str, Any]) -> None:
    told = commands(jobs["package"])
    for command in ("python -m build", "dist/*.whl", "import deva_optim", "deva --help"):
        assert command in told


def test_actions_are_official_and_of_a_major_version(jobs: dict[str, Any]) -> None:
    used = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", name) for name in used)


def test_portability_names_tests_that_there_are() -> None:
    for name in NUMERICAL:
        file, _, function = name.partition("::")
        assert f"def {function or 'test_'}" in (TESTS / file).read_text("utf-8"), name
