"""Markdown as HTML: what our pages use of it, and nothing that a text can smuggle in."""

import pytest

from deva_lab.render.pages import demoted, html


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
