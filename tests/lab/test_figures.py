"""The figure: that it is drawn for anything, without changing matplotlib's state for others."""

import re
import struct
import xml.etree.ElementTree as ET
from importlib.resources import files
from itertools import pairwise

import pytest

from deva_lab.render.figures import (
    COLOURS,
    GREY,
    GRID,
    INK,
    SPARE,
    figure_of,
    name,
    save,
    spread_out,
    styles,
)
from deva_lab.render.pages import Comparison
from lab.made_results import comparison, crowd, falling, result

CASES = {
    "comparison": comparison(),
    "many": crowd(20),
    "one run": [falling("deva", 0.006, 0)],
    "one point": [result(loss=[3.0])],
    "all diverged": [result(loss=[8.0, None], status="diverged")],
    "no loss": [result(loss=[None], status="diverged")],
    "decades": [result(loss=[100.0, 1e-2, 1e-6]), result("deva", loss=[100.0, 0.0, -1.0])],
    "constant": [result(loss=[3.0, 3.0, 3.0])],
    "grid all diverged": [result(loss=[8.0, None], lr=lr, status="diverged") for lr in (0.1, 0.2)],
}


def write_figure(summary, folder):
    """The figure of a comparison in two files."""
    return save(figure_of(summary), folder, "curves")


@pytest.mark.parametrize("case", CASES)
def test_draws(case, tmp_path):
    png, svg = write_figure(Comparison(CASES[case]), tmp_path)
    assert (png.name, svg.name) == ("curves.png", "curves.svg")
    assert ET.parse(svg).getroot().tag.endswith("svg")
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    assert width > height > 500


def test_names_every_optimizer_and_the_diverged(tmp_path):
    svg = write_figure(Comparison(comparison()), tmp_path)[1].read_text("utf-8")
    for text in ("DeVA", "AdamW", "SOAP", "Muon nesterov=true", "diverged: Lion", "learning rate"):
        assert text in svg


def test_no_panel_of_rates_without_a_grid(tmp_path):
    svg = write_figure(Comparison([falling("deva", 0.006, 0)]), tmp_path)[1].read_text("utf-8")
    assert "learning rate" not in svg


def test_is_the_same_file_twice(tmp_path):
    first = write_figure(Comparison(comparison()), tmp_path)[1].read_bytes()
    assert write_figure(Comparison(comparison()), tmp_path)[1].read_bytes() == first


def test_leaves_the_settings_of_matplotlib_alone(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    write_figure(Comparison([falling("deva", 0.006, 0)]), tmp_path)
    assert dict(matplotlib.rcParams) == before


def test_names_are_moved_apart_in_order():
    places = spread_out({"a": 5.0, "b": 5.5, "c": 5.2, "d": 20.0}, gap=3.0)
    ordered = sorted(places, key=lambda label: places[label])
    assert ordered == ["a", "c", "b", "d"]
    heights = [places[label] for label in ordered]
    assert min(b - a for a, b in pairwise(heights)) >= 3.0 - 1e-9
    assert places["d"] == 20.0


def test_a_method_keeps_its_colour_and_variants_differ_by_the_dash():
    looks = styles(["muon", "muon:nesterov=true", "deva", "adamw"])
    assert looks["muon"].light == looks["muon:nesterov=true"].light
    assert looks["muon"].dash == ()
    assert looks["muon:nesterov=true"].dash != ()
    assert looks["deva"] == styles(["deva"])["deva"]
    assert looks["deva"].width > looks["adamw"].width
    assert name("muon:nesterov=true") == "Muon nesterov=true"


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_colour_of_the_style_has_another_on_dark_pages():
    style = files("deva_lab.render").joinpath("deva.mplstyle").read_text("utf-8")
    assert {f"#{colour}" for colour in re.findall(r"\b[0-9a-f]{6}\b", style)} == {GREY, INK, GRID}


@pytest.mark.parametrize(("light", "dark"), [*COLOURS.values(), *SPARE])
def test_colours_are_seen_on_both_papers(light, dark):
    # 4.5 to one is what WCAG asks of text, and the names beside the lines have these colours too;
    # the papers are those of report.css
    assert contrast(light, "#fdfdfb") >= 4.5
    assert contrast(dark, "#15171a") >= 4.5
