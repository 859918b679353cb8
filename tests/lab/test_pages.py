"""Pages: whole, escaped, with nothing to fetch, and Markdown with nothing smuggled in."""

import json
import re
from html.parser import HTMLParser

import pytest

from deva_lab import results as summary
from deva_lab.errors import UsageError
from deva_lab.render.markdown import demoted, html
from deva_lab.render.pages import Comparison
from deva_lab.run.entrants import Entrant
from deva_lab.run.plan import Request, plan
from deva_lab.run.runner import train
from deva_lab.run.tasks import make_task
from deva_lab.run.training import Run
from lab.made_results import comparison, crowd, failed, falling, recorded, result

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
    "some failed": [falling("deva", 0.006, 0), failed("muon")],
    "all failed": [failed("muon"), failed("adamw")],
    "telemetry": [recorded(run) for run in comparison()],
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
def test_is_whole_and_fetches_nothing(case):
    text = render(CASES[case], command="deva compare")
    page = Outline(text)
    assert (page.wrong, page.open) == ([], [])
    assert {"h1", "table", "svg", "figure"} <= set(page.tags)
    ended = {run["label"] for run in CASES[case] if run["status"] != "failed"}
    assert len(json.loads(page.data)["series"]) == len(ended)
    assert "NaN" not in page.text
    assert "inf" not in re.sub("info", "", page.text)
    assert page.fetched == []
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


def test_says_which_runs_failed():
    page = Outline(render([*comparison(), failed("adamuon", EVIL, seed=1)], command=""))
    assert "AdaMuon at lr 0.01, seed 1 failed: " + EVIL in page.text
    assert page.wrong == []
    assert "img" not in page.tags


def test_says_what_tuning_gained_and_what_is_noise():
    text = Outline(render(comparison(), command="")).text
    assert "The best rate against the usual one" not in text  # no usual rate was run
    runs = [
        result("adamw", loss=[8.0, 4 + lr], lr=lr, seed=s) for lr in (0.002, 0.005) for s in (0, 1)
    ]
    text = Outline(render(runs, command="")).text
    assert "The best rate against the usual one" in text
    assert "may be chance" in text


def test_says_what_flops_are():
    assert "six a weight and token" in render(comparison(), command="")
    images = Outline(render([{**run, "unit": "images"} for run in comparison()], command="")).text
    assert "FLOPs" not in images
    assert "Seconds are those of training, without validation." in images


def test_telemetry_is_drawn_where_there_is_any():
    assert "What the optimizers did" not in render(comparison(), command="")
    page = render([recorded(run) for run in comparison()], command="")
    for title in ("Update to weight", "Drift of the bases", "Steps skipped"):
        assert f"<h3>{title}</h3>" in page
    assert "Norm of Γ" not in page
    none = [recorded(run) for run in comparison()]
    for run in none:
        for record in run["telemetry"]:
            record["matrices"].pop("b")
    assert "No step was skipped." in render(none, command="")


def test_names_in_the_page_are_there_once():
    ids = re.findall(r' id="([^"]+)"', render(CASES["telemetry"], command=""))
    shared = {name for name in ids if ids.count(name) > 1}
    assert all(re.fullmatch(r"[mp][0-9a-f]{10}", name) for name in shared)  # the same ticks twice


def test_numbers_of_still_charts_are_whole():
    rates = [result(loss=[8.0, 4.0], lr=lr) for lr in (0.00125, 0.0025, 0.005)]
    page = Outline(render(rates, command=""))
    assert "0.00125" in page.text
    assert "0.0025" in page.text


def test_stays_small():
    assert len(render(crowd(20), command="").encode()) < 200_000


# The comparison as Python and notebooks have it ------------------------------------------------


def test_table_figure_and_page(tmp_path):
    found = Comparison(comparison(), title="Mine")
    assert found.table() == str(found)
    assert found.table().splitlines()[3].startswith("deva ")
    assert [axes.get_xlabel().split(" (")[0] for axes in found.plot().axes] == [
        "tokens",
        "learning rate",
    ]
    page = found.report(tmp_path / "page.html")
    assert page.read_text("utf-8") == found.page()
    assert "<title>Mine</title>" in found.page()
    assert "deva compare --task gpt" in found.page()  # the command of the last run


def test_a_notebook_shows_table_and_figure():
    shown = Comparison(
        [result(loss=[8.0, 4.0]), failed("muon", "RuntimeError: <no> memory")]
    )._repr_html_()
    assert "<table>" in shown
    assert "<svg" in shown
    assert "RuntimeError: &lt;no&gt; memory" in shown


def test_all_runs_may_have_failed(tmp_path):
    found = Comparison([failed("muon", "RuntimeError: <no> memory")])
    found.publish(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"curves.png", "curves.svg", "report.html"}
    assert "Every run failed." in found.page()
    assert "Every run failed." in found._repr_html_()
    assert found.plot().axes


def test_results_are_looked_at_once(tmp_path, monkeypatch):
    means, mean = [], summary.mean_curve
    monkeypatch.setattr(summary, "mean_curve", lambda runs: means.append(runs) or mean(runs))
    found = Comparison(comparison())
    found.publish(tmp_path)
    found.table()
    assert len(means) == len(found.rows)


def test_telemetry_of_a_real_comparison_is_on_the_page(tmp_path):
    entrants = tuple(map(Entrant.parse, ("deva-sinf", "muon", "torch-adamw")))
    runs = plan(Request(entrants, task="mlp", size="tiny", steps=4, telemetry=2))
    assert [run.telemetry for run in runs] == [(2, 4), (2, 4), ()]  # PyTorch's has none
    results = [train(Run(run, make_task(run, report=print))) for run in runs]
    found = Comparison(results)
    assert list(found.telemetry) == ["update", "gamma", "drift", "msign"]
    assert set(found.telemetry["update"]) == {"deva-sinf", "muon"}
    assert found.telemetry["update"]["muon"].x == [2, 4]
    assert "Norm of Γ" in found.page()
    with pytest.raises(UsageError, match="--telemetry is a number of steps, at least 1, got 0"):
        plan(Request(entrants, task="mlp", size="tiny", steps=4, telemetry=0))


# Markdown ----------------------------------------------------------------------------------------


def drawn(shows: str, where: str) -> str:
    return f"<{where}: {shows}>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("## fig-trace", '<h2 id="fig-trace">fig-trace</h2>'),
        ("### squared: the loss", "<h3>squared: the loss</h3>"),
        ("two\nlines", "<p>two lines</p>"),
        ("**a** and *b c*, 2 * 3 * 4", "<p><strong>a</strong> and <em>b c</em>, 2 * 3 * 4</p>"),
        ("`a**b**` < 1", "<p><code>a**b**</code> &lt; 1</p>"),
        ("[a](#b) [c](javascript:d)", '<p><a href="#b">a</a> [c](javascript:d)</p>'),
        ("- one\n  more\n- two", "<ul><li>one more</li><li>two</li></ul>"),
        ("```\na\n\n<b>\n```", "<pre><code>a\n\n&lt;b&gt;\n</code></pre>"),
        ("![a figure](a/b.png)", "<a/b.png: a figure>"),
        ("# a\ntext", '<h1 id="a">a</h1><p>text</p>'),
        ("<script>x</script>", "<p>&lt;script&gt;x&lt;/script&gt;</p>"),
        ("", ""),
    ],
)
def test_blocks(text: str, expected: str) -> None:
    assert html(text, drawn).rstrip("\n").replace(">\n<", "><") == expected


def test_a_table_has_its_numbers_to_the_right() -> None:
    rows = "| ‖a\\|‖ | 3.2 ± 0.1 |\n| `x\\|y` | diverged |\n| – | **49.5** |"
    found = html(f"| what | loss |\n|---|---|\n{rows}", drawn)
    assert found.count("<th") == 2 + 1  # and <thead>
    assert found.count('class="number"') == 1 + 3
    assert "<td>‖a|‖</td>" in found
    assert "<td><code>x|y</code></td>" in found
    assert '<td class="number"><strong>49.5</strong></td>' in found
    assert 'role="region"' in found


def test_a_table_of_nothing_is_a_head() -> None:
    assert "<thead>" in html("| a | b |\n|---|---|", drawn)


def test_headings_go_down_and_nothing_else_does() -> None:
    text = "# a\n\n#b\n\n## c\nd"
    assert demoted(text, by=2) == "### a\n\n#b\n\n#### c\nd"
