"""The report in a real browser: it loads, draws, switches, and fits a phone and the dark."""

import pytest

from deva_lab.render.pages import Comparison
from lab.browser import browser, find_chromium
from lab.made_results import comparison, crowd, failed, recorded, result

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium, chromium-browser, google-chrome or chrome is installed"
)
TITLE = "document.querySelector('#curves .x-title').textContent"
LINES = "[...document.querySelectorAll('#curves .line')].map(line => line.getAttribute('d'))"
VALUES = "[...document.querySelectorAll('.legend .value')].map(value => value.textContent)"
PAPER = "getComputedStyle(document.body).backgroundColor"
EVIL = "<img src=x onerror=\"document.title='broken'\">"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(chromium, tmp_path):
    """A page that shows the comparison; the test fails if it wrote or threw an error."""
    chromium.errors.clear()
    chromium.requests.clear()
    chromium.prefer("light")
    chromium.resize(1000, 800)
    show(chromium, tmp_path, comparison())
    yield chromium
    assert chromium.errors == []
    assert [url for url in chromium.requests if not url.startswith("file:")] == []


def show(page, folder, results):
    path = folder / "report.html"
    path.write_text(Comparison(results, command="deva compare").page(), "utf-8")
    page.open(path.as_uri())


def click(page, selector, number=0):
    page.run(f"document.querySelectorAll({selector!r})[{number}].click()")


def test_an_error_of_a_page_is_seen(chromium, tmp_path):
    (tmp_path / "bad.html").write_text("<script>console.error('a'); throw new Error('b')</script>")
    chromium.open((tmp_path / "bad.html").as_uri())
    assert len(chromium.errors) == 2


def test_switches_the_axis(page):
    assert page.run(TITLE) == "tokens"
    before = page.run(LINES)
    assert len(before) == 5
    click(page, "[data-axis=seconds]")
    assert page.run(TITLE) == "seconds of training"
    assert page.run(LINES) != before
    pressed = "document.querySelector('[data-axis=seconds]').getAttribute('aria-pressed')"
    assert page.run(pressed) == "true"
    click(page, "[data-axis=step]")
    assert page.run(TITLE) == "steps"
    click(page, "[data-axis=flops]")
    assert page.run(TITLE) == "FLOPs of the model"
    ticks = "[...document.querySelectorAll('#curves text')].map(text => text.textContent)"
    assert any(text.endswith("T") for text in page.run(ticks))  # 6 · 1.3M · 1.2M is 9.7 T
    click(page, "[data-axis=units]")
    assert page.run(LINES) == before


def test_legend_switches_lines(page):
    click(page, ".legend button", 1)
    assert len(page.run(LINES)) == 4
    assert page.run("document.querySelectorAll('[data-chart=rates] .line').length") == 4
    click(page, ".legend button", 1)
    assert len(page.run(LINES)) == 5


def test_seeds_as_lines_and_the_range_from_the_start(page):
    assert page.run("document.querySelectorAll('#curves .seed').length") == 0
    click(page, "[data-seeds=lines]")
    assert page.run("document.querySelectorAll('#curves .seed').length") == 5 * 3
    before = page.run(LINES)
    click(page, "[data-range=whole]")
    assert page.run(LINES) != before


def test_reads_values_with_the_mouse_and_the_keyboard(page):
    final = page.run(VALUES)
    assert final[0] == "3.028"
    assert final[4] == "diverged"
    page.run("document.querySelector('#curves .plot').scrollIntoView()")
    left, top, width = page.run(
        "(({left, top, width}) => [left, top, width])"
        "(document.querySelector('#curves .plot').getBoundingClientRect())"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + width / 2, y=top + 100)
    assert float(page.run(VALUES)[0]) > 3.028
    assert "tokens" in page.run("document.getElementById('reading').textContent")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert page.run(VALUES) == final
    page.run("document.querySelector('#curves .plot').focus()")
    page.press("Home")
    assert page.run(VALUES)[0] == "8.350"
    page.press("ArrowRight")
    assert page.run(VALUES)[0] != "8.350"
    page.press("Escape")
    assert page.run(VALUES) == final


@pytest.mark.parametrize("width", [320, 360, 400, 768])
def test_fits_the_width_of_a_phone(page, tmp_path, width):
    for results in (comparison(), crowd(20), [recorded(run) for run in comparison()]):
        page.resize(width, 740)
        show(page, tmp_path, results)
        assert page.run("innerWidth") == width
        assert page.run("document.documentElement.scrollWidth") <= width


def test_draws_anew_when_the_width_changes(page):
    page.resize(360, 740)
    view = page.run("document.querySelector('#curves .plot svg').getAttribute('viewBox')")
    assert float(view.split()[2]) < 360


def test_dark_by_preference_and_by_the_button(page):
    light = page.run(PAPER)
    page.prefer("dark")
    dark = page.run(PAPER)
    assert dark != light
    assert page.run("document.getElementById('theme').textContent") == "Light"
    click(page, "#theme")
    assert page.run(PAPER) == light
    click(page, "#theme")
    assert page.run(PAPER) == dark


def test_still_charts_have_colours_for_the_dark(page, tmp_path):
    show(page, tmp_path, [recorded(run) for run in comparison()])
    path = "document.querySelector('.several .line path')"
    colour = f"getComputedStyle({path}).stroke"
    light = page.run(colour)
    page.prefer("dark")
    assert light == "rgb(8, 104, 172)"  # Muon
    assert page.run(colour) == "rgb(92, 179, 239)"


def test_prints_on_white_even_from_the_dark(page):
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    page.call("Emulation.setEmulatedMedia", media="print", features=[dark])
    assert page.run(PAPER) == "rgb(255, 255, 255)"
    assert page.run("getComputedStyle(document.querySelector('.controls')).display") == "none"
    assert len(page.call("Page.printToPDF", printBackground=True)["data"]) > 10_000
    page.call("Emulation.setEmulatedMedia", media="", features=[])


def test_every_control_has_a_name_and_is_reached_by_keyboard(page):
    buttons = "[...document.querySelectorAll('button')]"
    assert page.run(f"{buttons}.every(b => b.textContent.trim() && !b.disabled)")
    assert page.run(f"{buttons}.every(b => b.tabIndex === 0 && b.offsetHeight >= 24)")


@pytest.mark.parametrize(
    "results",
    [
        [],
        [result(loss=[3.0])],
        [result(loss=[8.0, None], lr=lr, status="diverged") for lr in (0.1, 0.2)],
        [result(loss=[None], status="diverged")],
        [result(loss=[100.0, 1e-2, 1e-6]), result("deva", loss=[100.0, 0.0, -1.0])],
        [result(loss=[8.0, 4.0, 3.0]), result("sgd", loss=[8.0, 1e30, 3e38])],
        [result(EVIL, loss=[8.0, 4.0, 3.0])],
        [failed("muon", EVIL), result(loss=[8.0, 4.0, 3.0])],
        [failed("muon", EVIL)],
        [recorded(result(loss=[8.0, 4.0, 3.0]))],
    ],
    ids=[
        "nothing",
        "one point",
        "diverged",
        "no loss",
        "decades",
        "far away",
        "html in a label",
        "failed",
        "all failed",
        "telemetry",
    ],
)
def test_draws_whatever_there_is(page, tmp_path, results):
    show(page, tmp_path, results)
    assert "NaN" not in page.run("document.querySelector('#curves .plot').innerHTML")
    for axis in ("step", "seconds", "units"):
        click(page, f"[data-axis={axis}]")
    click(page, "[data-range=whole]")
    assert page.run("document.title") == "Comparison of optimizers"


def test_without_scripts_there_is_a_chart(chromium, tmp_path):
    chromium.call("Emulation.setScriptExecutionDisabled", value=True)
    show(chromium, tmp_path, comparison())
    chromium.call("Emulation.setScriptExecutionDisabled", value=False)
    assert len(chromium.run(LINES)) == 5
    assert chromium.run("document.querySelector('.controls').hidden") is True
