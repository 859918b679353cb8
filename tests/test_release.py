"""The distributions have what they should and no more, and a tag that does not fit is refused."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
import yaml

import deva_optim
from helpers import LAB, POSIX, PROJECT, ROOT
from release import DISTRIBUTIONS, NotReadyError, check_contents, check_tag, main, version_of

VERSION = deva_optim.__version__
NAMES = {name: name.replace("-", "_") for name in DISTRIBUTIONS}


def build(project: Path, out: Path, kind: str) -> Path:
    """Build a wheel or an sdist without an environment of its own."""
    before = set(out.iterdir())
    words = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(out)]
    subprocess.run(words, cwd=project, check=True, capture_output=True)
    (made,) = set(out.iterdir()) - before
    return made


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each distribution, built from the clone."""
    out = tmp_path_factory.mktemp("wheels")
    return {name: build(ROOT / folder, out, "wheel") for name, (folder, _) in DISTRIBUTIONS.items()}


def metadata(wheel: Path) -> Message:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_string(archive.read(name).decode())


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_wheel_has_one_package_whole(name: str, wheels: dict[str, Path]) -> None:
    package = NAMES[name]
    check_contents(wheels[name], package)
    wanted = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = set(zipfile.ZipFile(wheels[name]).namelist())
    assert {file for file in found if ".dist-info/" not in file} == wanted


def test_the_library_needs_torch_alone_and_the_laboratory_this_library(
    wheels: dict[str, Path],
) -> None:
    needs = {
        name: [
            need for need in metadata(wheel).get_all("Requires-Dist", []) if "extra ==" not in need
        ]
        for name, wheel in wheels.items()
    }
    assert needs["deva-optim"] == ["torch>=2.6"]
    assert needs["deva-lab"][0] == f"deva-optim=={VERSION}"
    assert {metadata(wheel)["Version"] for wheel in wheels.values()} == {VERSION}


def test_the_command_belongs_to_the_laboratory(wheels: dict[str, Path]) -> None:
    owners = [
        name
        for name, wheel in wheels.items()
        if any(file.endswith("/entry_points.txt") for file in zipfile.ZipFile(wheel).namelist())
    ]
    assert owners == ["deva-lab"]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_an_sdist_makes_the_wheel_of_a_clone(
    name: str, wheels: dict[str, Path], tmp_path: Path
) -> None:
    sdist = build(ROOT / DISTRIBUTIONS[name][0], tmp_path, "sdist")
    with tarfile.open(sdist) as archive:
        if sys.version_info >= (3, 12):
            archive.extractall(tmp_path / "unpacked", filter="data")
        else:
            archive.extractall(tmp_path / "unpacked")
    (project,) = (tmp_path / "unpacked").iterdir()
    again = build(project, tmp_path, "wheel")
    assert again.name == wheels[name].name
    first, second = zipfile.ZipFile(wheels[name]), zipfile.ZipFile(again)
    assert {n: first.read(n) for n in first.namelist()} == {
        n: second.read(n) for n in second.namelist()
    }


def test_both_distributions_say_the_same_of_themselves() -> None:
    shared = ("requires-python", "license", "license-files", "authors", "classifiers", "urls")
    assert {key: PROJECT[key] for key in shared} == {key: LAB[key] for key in shared}
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "lab/LICENSE").read_bytes()
    assert {"Homepage", "Documentation", "Repository", "Issues", "Changelog"} == set(
        PROJECT["urls"]
    )


def test_readme_can_be_read_where_there_is_no_clone(wheels: dict[str, Path]) -> None:
    for wheel in wheels.values():
        text = str(metadata(wheel).get_payload())
        targets = re.findall(r"\]\((.*?)\)", text)
        assert targets
        assert all(target.startswith(("https://", "#")) for target in targets), targets
        assert "from a clone" not in text
    text = str(metadata(wheels["deva-optim"]).get_payload())
    assert re.search(r"^pip install deva-optim ", text, re.MULTILINE)
    assert 'pip install "deva-optim[lab]"' in text
    assert not re.search(r"pip install \.", text)


# --- What is checked before a tag is published ----------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project at version 1.2.3 that is ready for its release."""
    package = tmp_path / "src/deva_optim"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "1.2.3"\n')
    changelog = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-02\n\n### Added\n\n- All.\n"
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    (tmp_path / "CITATION.cff").write_text("version: 1.2.3\ndate-released: 2026-01-02\n")
    return tmp_path


def test_the_tag_of_the_version_passes(project: Path) -> None:
    check_tag("v1.2.3", project)


@pytest.mark.parametrize("tag", ["1.2.3", "v1.2.4", "v1.2.3rc1", "v1.2", ""])
def test_another_tag_is_refused(tag: str, project: Path) -> None:
    with pytest.raises(NotReadyError, match=r"must be v1\.2\.3"):
        check_tag(tag, project)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("CHANGELOG.md", "[1.2.3]", "[1.2.2]", r"no '## \[1\.2\.3\]"),
        ("CHANGELOG.md", " - 2026-01-02", "", "YYYY-MM-DD"),
        ("CHANGELOG.md", "- All.\n", "## [1.2.2] - 2026-01-01\n\n- All.\n", "says nothing"),
        ("CITATION.cff", "version: 1.2.3", "version: 1.2.2", "version: 1.2.3"),
        ("CITATION.cff", "2026-01-02", "2026-01-03", "date-released: 2026-01-02"),
        ("src/deva_optim/__init__.py", "__version__", "version", "has no __version__"),
    ],
)
def test_what_does_not_know_the_version_is_named(
    file: str, old: str, new: str, message: str, project: Path
) -> None:
    path = project / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(NotReadyError, match=message):
        check_tag("v1.2.3", project)


def test_the_command_exits_with_an_error_at_a_wrong_tag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tag", "v0.0.0"]) == 1
    assert f"must be v{VERSION}, got v0.0.0" in capsys.readouterr().err
    assert main(["tag"]) == 2


@pytest.mark.parametrize(
    ("added", "removed", "message"),
    [
        ("tests/__init__.py", None, "has tests"),
        ("deva_lab/__init__.py", None, "has deva_lab"),
        (None, "deva_optim/py.typed", r"no deva_optim/py\.typed"),
        (None, "deva_optim/__init__.py", r"no deva_optim/__init__\.py"),
    ],
)
def test_a_wheel_with_more_or_less_is_refused(
    added: str | None, removed: str | None, message: str, tmp_path: Path
) -> None:
    wheel = tmp_path / "deva_optim-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("deva_optim/__init__.py", "deva_optim/py.typed", "x.dist-info/RECORD", added):
            if name is not None and name != removed:
                archive.writestr(name, "")
    with pytest.raises(NotReadyError, match=message):
        check_contents(wheel, "deva_optim")


# --- What this version says of itself -------------------------------------------------------------


def test_the_version_is_in_one_place() -> None:
    assert version_of() == VERSION
    assert "version" in PROJECT["dynamic"]
    assert "version" in LAB["dynamic"]


def test_this_version_could_be_tagged() -> None:
    check_tag(f"v{VERSION}")
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)[:2] == ["Unreleased", VERSION]


def test_citation_names_this_version_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert {"cff-version", "message", "title", "authors", "version"} <= set(citation)
    assert citation["version"] == VERSION
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    paper = citation["preferred-citation"]
    bibtex = re.search(r"author = \{(.*?)\}", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert bibtex is not None
    named = [f"{a['family-names']}, {a['given-names']}" for a in paper["authors"]]
    assert " and ".join(named) == bibtex[1]


@pytest.mark.skipif(not POSIX or shutil.which("make") is None, reason="needs make and its shell")
def test_make_tag_runs_the_check() -> None:
    words = ["make", "tag", f"PYTHON={sys.executable}", "TAG=v0.0.0"]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode
    assert f"must be v{VERSION}, got v0.0.0" in ended.stderr
