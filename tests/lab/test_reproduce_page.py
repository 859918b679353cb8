"""The page of all experiments: from made-up and from real records, and in a real browser."""

import json
import re
from pathlib import Path

import pytest

from deva_lab.cli import main
from deva_lab.render import markdown_table
from deva_lab.reproduce.experiment import Computed, Shown, Trained
from deva_lab.reproduce.experiments import TITLE, duration, write_page
from deva_lab.run.settings import RunSettings
from lab.browser import browser, find_chromium

CHROMIUM = find_chromium()
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium, chromium-browser, google-chrome or chrome is installed"
)
EVIL = "<img src=x onerror=\"document.title='broken'\">"
PAPER = "getComputedStyle(document.body).backgroundColor"
VERDICTS = {
    "fig-one": "holds: 2 of 2 claims hold",
    "table-two": "holds in part: 1 of 2 claims holds",
    "fig-three": "does not hold at this scale: 0 of 2 claims hold",
}


def picture(folder: Path, name: str) -> tuple[Path, Path]:
    """A figure in both kinds."""
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    png.write_bytes(b"")
    svg.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 300 200"><rect width="300" '
        f'height="200" fill="#fff"/><text x="99" y="99">{name}</text></svg>'
    )
    return png, svg


def made(id_: str, *, figure: bool = True) -> Computed:
    """An experiment with a table, a figure and a verdict."""

    def show(results, folder):
        table = markdown_table(("loss", "the paper", "here"), [("Muon |x|", "3.30", "3.2 ± 0.1")])
        text = f"## at one rate\n\n{table}\n\n{EVIL} and `code`"
        figures = picture(folder, id_) if figure else ()
        why = "Steps: they are fewer here." if id_ == "fig-three" else ""
        return Shown(text, VERDICTS[id_], figures, f"caption of {id_}", why)

    return Computed(id_, f"what {id_} shows", "nowhere", show, lambda *_: {}, {"seeds": 3})


@pytest.fixture
def folder(tmp_path):
    """A folder with the records of three experiments, and one that has none."""
    out = tmp_path / "out"
    for one in some()[:3]:
        one.record("cpu", out)
    return out


def some() -> list[Computed]:
    missing = Computed("fig-four", "not run", "nowhere", None, None)
    return [made("fig-one"), made("table-two", figure=False), made("fig-three"), missing]


# Markdown ----------------------------------------------------------------------------------------


def test_the_page_has_a_table_and_a_section_of_each(folder, tmp_path):
    page = tmp_path / "docs" / "reproduction.md"
    assert write_page(some(), "cpu", folder, page) == [page, folder / "report.html"]
    text = page.read_text()
    assert "At a scale for two cores, of 3 figures, tables and sets of theorems, 1 holds," in text
    assert "1 holds, 1 holds in part and 1 does not hold." in text
    top = text.partition("## fig-one")[0]
    assert "| [fig-one](#fig-one) | what fig-one shows | **holds** | 0 s |" in top
    assert "| **holds in part** |" in top
    assert "| **does not hold**: steps |" in top
    assert "| fig-four | not run | not run | – | `deva reproduce fig-four` |" in top
    assert re.findall("^#+ .*", text, re.MULTILINE) == [
        "# The paper, reproduced",
        *("## fig-one", "### at one rate", "## table-two", "### at one rate"),
        *("## fig-three", "### at one rate"),
    ]
    for part in ("![what fig-one shows](reproduction/fig-one.svg)", "*caption of fig-three*",
                 "**Verdict**: holds: 2 of 2 claims hold.\n", "In the paper: nowhere.",
                 "**Verdict**: holds in part. 1 of 2 claims holds. `deva reproduce table-two` ",
                 "**Verdict**: does not hold at this scale. Steps: they are fewer here. 0 of 2 ",
                 "`deva reproduce fig-one` · seeds 3 · 0 s on "):  # fmt: skip
        assert part in text
    assert str(folder) not in text  # where the results were is nobody's business
    figures = sorted(path.name for path in (page.parent / "reproduction").iterdir())
    assert figures == ["fig-one.svg", "fig-three.svg"]


def test_a_page_of_nothing(tmp_path):
    write_page(some(), "cpu", tmp_path, tmp_path / "a.md")
    assert "Nothing has been run yet." in (tmp_path / "a.md").read_text()
    assert "Nothing has been run yet." in (tmp_path / "report.html").read_text()


def test_a_trained_experiment_is_there_when_all_of_its_runs_are(tmp_path):
    def plan(setup):
        data = setup.base.data
        one = RunSettings("mlp", "tiny", data, "deva", 0.01, seed=0, steps=4, batch=2)
        return [one, one.changed(seed=1)]

    def show(results, folder):
        return Shown(f"{len(results)} runs", "holds: all")

    trained = Trained("fig-t", "t", "nowhere", show, plan, "resnet")
    lines = [
        {
            "id": run.id,
            "status": "finished",
            "settings": run.saved(),
            "curve": {"seconds": [0.0, 90.0]},
            "environment": {"processor": "a processor"},
        }
        for run in trained.runs("cpu", "other")
    ]
    results = tmp_path / "results.jsonl"
    results.write_text(json.dumps(lines[0]) + "\n")
    write_page([trained], "cpu", tmp_path, tmp_path / "a.md")
    assert "Nothing has been run yet." in (tmp_path / "a.md").read_text()
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    twin = Trained("fig-u", "u", "nowhere", show, plan, "resnet")
    write_page([trained, twin], "cpu", tmp_path, tmp_path / "a.md")
    text = (tmp_path / "a.md").read_text()
    assert text.count("| 3 min | `deva reproduce fig-") == 2
    assert "3 min on a processor" in text  # not six: both have the same runs
    assert "`deva reproduce fig-t --data other` · data other, seeds 0 1, runs 2" in text


def test_times_have_the_unit_that_fits():
    assert [duration(s) for s in (0.2, 119, 121, 7300)] == ["0 s", "119 s", "2 min", "2.0 h"]


# The command -------------------------------------------------------------------------------------


def test_the_command_collects_what_the_folder_has(tmp_path, capsys):
    page, out = tmp_path / "page.md", tmp_path / "out"
    assert main(["reproduce", "table-methods", "--out", str(out), "--page", str(page)]) == 0
    assert capsys.readouterr().out.endswith(f"{page}\n{out / 'report.html'}\n")
    first = page.read_text()
    assert "## table-methods" in first
    assert "## theory" not in first
    assert "| theory |" in first
    page.unlink()
    assert main(["reproduce", "--out", str(out), "--page", str(page)]) == 0
    assert page.read_text() == first


def test_a_page_is_markdown(capsys):
    assert main(["reproduce", "--page", "fig-trace"]) == 2
    assert "--page must be a file that ends in .md, got fig-trace" in capsys.readouterr().err


# In a browser ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def shown(chromium, folder, tmp_path):
    """The page in a browser; the test fails if it wrote or threw an error, or asked the network."""
    write_page(some(), "cpu", folder, tmp_path / "reproduction.md")
    chromium.errors.clear()
    chromium.requests.clear()
    chromium.prefer("light")
    chromium.resize(1000, 800)
    chromium.open((folder / "report.html").as_uri())
    yield chromium
    assert chromium.errors == []
    assert [url for url in chromium.requests if not url.startswith(("file:", "data:"))] == []


@needs_chromium
def test_the_html_has_figures_tables_and_links(shown):
    assert shown.run("document.title") == TITLE
    images = "[...document.querySelectorAll('.drawn img')]"
    assert shown.run(f"{images}.map(image => image.naturalWidth > 0)") == [True, True]
    assert shown.run(f"{images}.every(image => image.alt)")
    assert shown.run("document.querySelectorAll('table').length") == 4
    links = "[...document.querySelectorAll('table a')]"
    there = f"{links}.every(a => document.getElementById(a.hash.slice(1)).tagName === 'H2')"
    assert shown.run(f"{links}.length === 3 && {there}")
    assert EVIL in shown.run("document.querySelector('main').textContent")


@needs_chromium
@pytest.mark.parametrize("width", [320, 400, 768])
def test_the_html_fits_a_phone(shown, width):
    shown.resize(width, 740)
    assert shown.run("innerWidth") == width
    assert shown.run("document.documentElement.scrollWidth") <= width


@needs_chromium
def test_the_html_in_the_dark_and_on_paper(shown):
    look = "getComputedStyle(document.querySelector('.drawn img')).filter"
    light_paper = shown.run(PAPER)
    assert shown.run(look) == "none"
    shown.prefer("dark")
    assert shown.run(PAPER) != light_paper
    assert "invert" in shown.run(look)
    shown.run("document.getElementById('theme').click()")
    assert (shown.run(PAPER), shown.run(look)) == (light_paper, "none")
    shown.run("document.getElementById('theme').click()")
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    shown.call("Emulation.setEmulatedMedia", media="print", features=[dark])
    assert (shown.run(PAPER), shown.run(look)) == ("rgb(255, 255, 255)", "none")
    shown.call("Emulation.setEmulatedMedia", media="", features=[])
