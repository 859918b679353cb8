"""The report as text: whole, escaped, with nothing to fetch."""

import json
import re
from html.parser import HTMLParser

import pytest

from deva_lab.comparison import Comparison
from deva_lab.report import script_json
from lab.made_results import comparison, crowd, falling, result

EVIL = '</script><img src=x onerror="alert(1)">&<b>'
CASES = {
    "comparison": comparison(),
    "many": crowd(20),
    "one run": [falling("deva", 0.006, 0)],
    "one point": [result(loss=[3.0])],
    "all diverged": [
        result(loss=[8.0, None], lr=lr, status="diverged", seed=seed)
        for lr in (0.1, 0.2)
        for seed in range(2)
    ],
    "no loss": [result(loss=[None], status="diverged")],
    "decades": [result(loss=[100.0, 1e-2, 1e-6]), result("deva", loss=[100.0, 0.0, -1.0])],
    "far away": [result(loss=[8.0, 4.0, 3.0]), result("sgd", loss=[8.0, 1e30, 3e38])],
    "nothing": [],
}


def render(results, **about):
    """The page of some results."""
    return Comparison(results, **about).page()


VOID = {"meta", "br", "hr", "img", "input", "link"}


class Outline(HTMLParser):
    """The open elements, the text of the page, the data, and what is not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.data = ""
        self.fetched: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.fetched += [value for key, value in attributes if key in ("src", "href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)
        self.json = tag == "script" and ("id", "data") in attributes

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.data += data if self.json else ""
        elif not self.open or self.open[-1] != "style":
            self.text += data


@pytest.mark.parametrize("case", CASES)
def test_is_whole(case):
    page = Outline(render(CASES[case], command="deva compare"))
    assert (page.wrong, page.open) == ([], [])
    assert {"h1", "table", "svg", "figure"} <= set(page.tags)
    assert len(json.loads(page.data)["series"]) == len({r["label"] for r in CASES[case]})
    assert "NaN" not in page.text
    assert "inf" not in re.sub("info", "", page.text)


@pytest.mark.parametrize("case", CASES)
def test_fetches_nothing(case):
    text = render(CASES[case], command="deva compare")
    assert Outline(text).fetched == []
    assert not re.search(r"@import|url\((?!#)|<link|fetch\(|XMLHttpRequest|import\(", text)
    addresses = set(re.findall(r"https?://[^\s\"'`)<]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_says_what_was_found_and_how_it_was_made():
    text = Outline(render(comparison(), command="deva compare --seeds 3", title="Mine")).text
    assert "DeVA reached AdamW’s final loss with 57\u00a0% of its tokens." in text
    for part in ("Mine", "deva compare --seeds 3", "2.13.0", "abc1234", "a processor of some kind"):
        assert part in text
    assert "Lion at lr 0.001, seed 0, 1, 2: gone by step 75" in text
    assert "600 steps of 2,048 tokens" in text


def test_text_from_outside_is_escaped():
    evil = {**result(EVIL, loss=[8.0, 3.0]), "unit": EVIL}
    evil["settings"] = {**evil["settings"], "data": EVIL, EVIL: EVIL}
    evil["environment"] = {EVIL: EVIL}
    page = render([evil, result("adamw", loss=[8.0, 4.0])], command=EVIL, title=EVIL)
    outline = Outline(page)
    assert "<img" not in page
    assert "<b>" not in page
    assert (outline.wrong, outline.open) == ([], [])
    assert outline.tags.count("script") == 2
    assert EVIL in outline.text
    assert EVIL in json.loads(outline.data)["unit"]


def test_script_json_is_read_back():
    value = {"text": EVIL, "number": [1.5, None]}
    assert json.loads(script_json(value)) == value
    assert not set(script_json(value)) & set("<>&")


def test_dollar_signs_are_text():
    assert "$title ${x}" in render(comparison(), command="echo $title ${x}")


def test_a_chart_of_rates_only_with_a_grid():
    assert 'data-chart="rates"' in render(comparison(), command="")
    assert 'data-chart="rates"' not in render([falling("deva", 0.006, 0)], command="")


def test_without_scripts_the_table_and_a_chart_are_there():
    page = re.sub(r"<script.*?</script>", "", render(comparison(), command=""), flags=re.S)
    table = page[page.index("<table>") : page.index("</table>")]
    assert table.index("DeVA") < table.index("AdamW")
    chart = page[page.index('data-chart="curves"') :]
    assert chart[: chart.index("</svg>")].count('class="line"') == 5


def test_shows_peak_memory_where_it_was_measured():
    assert "Peak memory" not in render(comparison(), command="")
    measured = [{**each, "peak_memory_bytes": 2_500_000_000} for each in comparison()]
    assert "2,500 MB" in render(measured, command="")


def test_stays_small():
    assert len(render(crowd(20), command="").encode()) < 200_000
