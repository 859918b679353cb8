"""Continuous integration runs on what pyproject.toml says, and a release is checked first."""

import itertools
import re
from typing import Any

import pytest
import yaml

from helpers import PROJECT, ROOT
from portability import NUMERICAL, TESTS
from release import DISTRIBUTIONS

WORKFLOWS = ROOT / ".github/workflows"
CLASSIFIER = "Programming Language :: Python :: "


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((WORKFLOWS / name).read_text("utf-8"))
    return found


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    """The jobs of continuous integration by name."""
    found: dict[str, Any] = read("ci.yml")["jobs"]
    return found


@pytest.fixture(scope="module")
def release() -> dict[str, Any]:
    """The jobs of a release by name."""
    found: dict[str, Any] = read("release.yml")["jobs"]
    return found


def rows_of(jobs: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Every system, Python and torch that the tests run on."""
    matrix = jobs["test"]["strategy"]["matrix"]
    product = itertools.product(matrix["os"], matrix["python"], matrix["torch"])
    return {*product, *((row["os"], row["python"], row["torch"]) for row in matrix["include"])}


def commands(job: dict[str, Any]) -> str:
    return "\n".join(step["run"] for step in job.get("steps", ()) if "run" in step)


def actions(jobs: dict[str, Any]) -> list[str]:
    """The actions that the steps use."""
    steps = (step for job in jobs.values() for step in job.get("steps", ()))
    return [step["uses"] for step in steps if "uses" in step]


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


def test_the_laboratory_is_installed_from_the_clone(jobs: dict[str, Any]) -> None:
    """The extras of the library ask for it, and pip would look for it on PyPI."""
    lines = [line for job in jobs.values() for line in commands(job).splitlines()]
    lines += (ROOT / "Makefile").read_text("utf-8").splitlines()
    installs = [line for line in lines if "--editable" in line and "[docs]" not in line]
    assert len(installs) == 4
    assert all(line.endswith("--editable lab") for line in installs)


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_workflows_make_what_the_makefile_has(name: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    told = "\n".join(commands(job) for job in read(name)["jobs"].values())
    made = set(re.findall(r"\bmake (\S+)", told))
    assert "dist" in made
    assert made <= targets


def test_the_package_is_built_and_checked(jobs: dict[str, Any]) -> None:
    assert commands(jobs["package"]) == "make dist"


def test_actions_are_official_and_of_a_major_version(
    jobs: dict[str, Any], release: dict[str, Any]
) -> None:
    publish = "pypa/gh-action-pypi-publish@release/v1"
    assert actions(jobs)
    assert publish in actions(release)
    for name in {*actions(jobs), *actions(release)} - {publish}:
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", name), name
    assert publish not in actions(jobs)


def test_a_release_starts_from_a_tag_alone() -> None:
    told = read("release.yml")
    assert told[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key `on` as true
    assert told["permissions"] == {"contents": "read"}


def needed(job: str, release: dict[str, Any]) -> set[str]:
    """All jobs that end well before this one begins."""
    direct = release[job].get("needs", [])
    direct = {direct} if isinstance(direct, str) else set(direct)
    return direct.union(*(needed(other, release) for other in direct))


def test_nothing_is_published_before_tag_tests_and_distributions_are_checked(
    release: dict[str, Any],
) -> None:
    assert commands(release["tag"]) == 'make tag TAG="$GITHUB_REF_NAME"'
    assert release["test"]["uses"] == "./.github/workflows/ci.yml"
    assert "workflow_call" in read("ci.yml")[True]
    assert commands(release["dist"]) == "make dist"
    publishing = [name for name in release if name.startswith("publish-")]
    assert publishing == [f"publish-{name}" for name in DISTRIBUTIONS]
    for job in publishing:
        assert {"tag", "test", "dist"} <= needed(job, release)
    # The laboratory cannot be installed before the library of its version is there.
    assert "publish-deva-optim" in needed("publish-deva-lab", release)


def test_publishing_is_trusted_and_each_project_has_its_environment(
    release: dict[str, Any],
) -> None:
    environments = set()
    for name, (_, package) in DISTRIBUTIONS.items():
        job = release[f"publish-{name}"]
        assert job["permissions"] == {"id-token": "write"}
        assert job["environment"]["url"] == f"https://pypi.org/project/{name}/"
        environments.add(job["environment"]["name"])
        (download, publish) = job["steps"]
        assert "with" not in publish  # no password, and the folder that the download fills
        assert download["with"] == {"name": f"release-{name}", "path": "dist"}
        uploads = [step.get("with", {}) for step in release["dist"]["steps"]]
        (paths,) = (u["path"] for u in uploads if u.get("name") == f"release-{name}")
        assert paths == f"dist/{package}-*"
    assert environments == {"pypi", "pypi-lab"}
    others = [job for name, job in release.items() if not name.startswith("publish-")]
    assert not any("id-token" in str(job) for job in others)


@pytest.mark.parametrize("name", ["bug.yml", "question.yml"])
def test_issue_forms_are_whole(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE" / name).read_text("utf-8"))
    assert {"name", "description", "body"} <= set(form)
    fields = [field["id"] for field in form["body"]]
    assert len(set(fields)) == len(fields)
    assert all(field["attributes"]["label"] for field in form["body"])


def test_a_bug_report_asks_for_what_a_bug_is_found_with() -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text("utf-8"))
    required = {f["id"] for f in form["body"] if f.get("validations", {}).get("required")}
    assert required == {"what", "script", "groups", "versions"}


def test_portability_names_tests_that_there_are() -> None:
    for name in NUMERICAL:
        file, _, function = name.partition("::")
        assert f"def {function or 'test_'}" in (TESTS / file).read_text("utf-8"), name
