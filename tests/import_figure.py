"""The figure of docs/architecture.md: `python tests/import_figure.py` draws it from the imports.

A node stands in a row below all that import it. A line that passes other rows has a place in each
of them, so that it passes behind no box. An edge that a longer path stands for is left out.
"""

from collections.abc import Mapping
from graphlib import TopologicalSorter
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import NamedTuple

from imports import PACKAGE, ROOT, Graph, graph, graph_of_parts, imports, part_of

FIGURE = ROOT / "docs" / "architecture.svg"

# In pixels: a character, the height of a name in its box, and the room between things.
CHARACTER, LINE = 7.3, 26
GAP, ROW_GAP, WIDE_ROW_GAP, MARGIN, HEADING = 16, 26, 34, 14, 20

Point = tuple[float, float]
Edge = tuple[str, str]


class Drawing(NamedTuple):
    """Where nodes and lines are: the centre of each node, and the points of each line."""

    width: float
    height: float
    centre: dict[str, Point]
    lines: dict[Edge, list[Point]]


def figure(package: Path) -> str:
    """The import graph as an SVG: the files of each folder, and the arrows between folders."""
    modules = graph(package)
    parts, lazy = reduced(graph_of_parts(modules)), _lazy_parts(package)
    inside = {part: _drawing_of_folder(f"{package.name}.{part}.", modules) for part in parts}
    sizes = {part: _size(part, inside[part]) for part in parts}
    whole = arranged(parts, sizes, WIDE_ROW_GAP)
    shapes = []
    for edge, points in whole.lines.items():
        shapes.append(_line(points, "part lazy" if edge in lazy else "part"))
    for part, (x, y) in whole.centre.items():
        shapes += _shapes_of_part(part, x, y, sizes[part], inside[part])
    for i, sentence in enumerate(_LEGEND):
        shapes.append(_text(sentence, whole.width / 2, whole.height + 28 + 18 * i, "legend"))
    width, height = round(whole.width + 2 * MARGIN), round(whole.height + 2 * MARGIN + 44)
    return _SVG.format(width=width, height=height, margin=MARGIN, shapes="\n".join(shapes))


def _lazy_parts(package: Path) -> set[Edge]:
    """The imports between parts that are made inside functions alone."""
    found = {lazy: set[Edge]() for lazy in (True, False)}
    for importer, imported, lazy in imports(package):
        found[lazy].add((part_of(importer), part_of(imported)))
    return found[True] - found[False]


def _drawing_of_folder(folder: str, modules: Graph) -> Drawing | None:
    names = {name: name.removeprefix(folder) for name in modules if name.startswith(folder)}
    if not names:
        return None
    own = {names[name]: {names[x] for x in modules[name] if x in names} for name in names}
    return arranged(reduced(own), {name: _size(name, None) for name in own}, ROW_GAP)


def _size(name: str, inside: Drawing | None) -> Point:
    if inside is None:
        return len(name) * CHARACTER + 20, LINE
    return inside.width + 2 * MARGIN, inside.height + 2 * MARGIN + HEADING


# Places ------------------------------------------------------------------------------------------


def reduced(nodes: Graph) -> Graph:
    """The graph without the edges that a longer path stands for."""
    below: Graph = {}
    for node in TopologicalSorter(nodes).static_order():
        below[node] = nodes[node].union(*(below[x] for x in nodes[node]))
    return {
        node: {x for x in of if not any(x in below[y] for y in of)} for node, of in nodes.items()
    }


def arranged(nodes: Graph, sizes: Mapping[str, Point], row_gap: float) -> Drawing:
    """The nodes in rows, in an order that keeps lines short."""
    rows, paths = _rows(nodes)
    size = {place: sizes.get(place, (6, 0)) for row in rows for place in row}
    x = _columns(rows, paths, size)
    top, bands = 0.0, {}  # the upper and the lower end of the row of each place
    for row in rows:
        height = max(size[place][1] for place in row)
        bands.update(dict.fromkeys(row, (top, top + height)))
        top += height + row_gap
    left = min(x[place] - size[place][0] / 2 for place in x)
    right = max(x[place] + size[place][0] / 2 for place in x)
    centre = {place: (x[place] - left, (high + low) / 2) for place, (high, low) in bands.items()}
    lines = {edge: _points(path, centre, size, bands) for edge, path in paths.items()}
    return Drawing(right - left, top - row_gap, {node: centre[node] for node in nodes}, lines)


def _rows(nodes: Graph) -> tuple[list[list[str]], dict[Edge, list[str]]]:
    """The places in each row, nodes and others, and the places along the line of each edge."""
    depth = dict.fromkeys(sorted(nodes), 0)
    for node in reversed([*TopologicalSorter(nodes).static_order()]):
        for other in nodes[node]:
            depth[other] = max(depth[other], depth[node] + 1)
    rows: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for node, row in depth.items():
        rows[row].append(node)
    paths = {}
    for upper, lower in sorted((node, other) for node in nodes for other in nodes[node]):
        between = range(depth[upper] + 1, depth[lower])
        places = [f"{upper} → {lower} in row {row}" for row in between]
        for row, place in zip(between, places, strict=True):
            rows[row].append(place)
        paths[upper, lower] = [upper, *places, lower]
    return rows, paths


def _columns(
    rows: list[list[str]], paths: Mapping[Edge, list[str]], size: Mapping[str, Point]
) -> dict[str, float]:
    """The middle of each place, from left to right; the rows are put into that order."""
    beside: dict[str, list[str]] = {place: [] for row in rows for place in row}
    for path in paths.values():
        for upper, lower in pairwise(path):
            beside[upper].append(lower)
            beside[lower].append(upper)
    x = {place: float(i) for row in rows for i, place in enumerate(row)}
    for sweep in range(40):
        for row in rows if sweep % 2 else reversed(rows):
            _align_(row, x, beside, size)
    return x


def _align_(
    row: list[str], x: dict[str, float], beside: Mapping[str, list[str]], size: Mapping[str, Point]
) -> None:
    """Put the places of a row as near to the middle of their neighbours as there is room."""
    wanted = {
        place: fsum(x[other] for other in beside[place]) / len(beside[place])
        if beside[place]
        else x[place]
        for place in row
    }
    row.sort(key=lambda place: wanted[place])
    end = -1e9
    for place in row:
        x[place] = max(wanted[place], end + size[place][0] / 2)
        end = x[place] + size[place][0] / 2 + GAP
    shift = fsum(wanted[place] - x[place] for place in row) / len(row)
    for place in row:
        x[place] += shift


def _points(
    path: list[str],
    centre: Mapping[str, Point],
    size: Mapping[str, Point],
    bands: Mapping[str, Point],
) -> list[Point]:
    """The points of a line, which is straight within rows and bends between them."""
    points: list[Point] = []
    for place, nearest in zip(path, [path[1], *path[1:-1], path[-2]], strict=True):
        (x, y), (width, height), (top, bottom) = centre[place], size[place], bands[place]
        room = max(0, width / 2 - 60)  # along a wide box a line ends where it is shortest
        x += min(room, max(-room, centre[nearest][0] - x))
        first = y + height / 2 if place == path[0] else top
        last = y - height / 2 if place == path[-1] else bottom
        points += [(x, first), (x, last)]
    return points


# Shapes ------------------------------------------------------------------------------------------


def _shapes_of_part(
    part: str, x: float, y: float, size: Point, inside: Drawing | None
) -> list[str]:
    if inside is None:
        return _box(part, x, y, size, "part")
    left, top = x - size[0] / 2 + MARGIN, y - size[1] / 2 + MARGIN + HEADING
    shapes = [_rectangle(x, y, size, "folder"), _text(f"{part}/", left, top - 14, "folder")]
    for points in inside.lines.values():
        shapes.append(_line([(left + a, top + b) for a, b in points], "file"))
    for name, (a, b) in inside.centre.items():
        shapes += _box(name, left + a, top + b, _size(name, None), "file")
    return shapes


def _box(name: str, x: float, y: float, size: Point, kind: str) -> list[str]:
    return [_rectangle(x, y, size, kind), _text(name, x, y + 4.5, "name")]


def _rectangle(x: float, y: float, size: Point, kind: str) -> str:
    width, height = size
    corner = f'x="{x - width / 2:.0f}" y="{y - height / 2:.0f}"'
    return f'<rect class="{kind}" {corner} width="{width:.0f}" height="{height:.0f}" rx="5"/>'


def _text(text: str, x: float, y: float, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}">{text}</text>'


def _line(points: list[Point], kind: str) -> str:
    path = f"M{points[0][0]:.0f},{points[0][1]:.0f}"
    for (x_0, y_0), (x_1, y_1) in pairwise(points):
        if y_0 == y_1:  # the row is no higher than the box; an arrow needs a direction
            continue
        middle = (y_0 + y_1) / 2
        path += f" C{x_0:.0f},{middle:.0f} {x_1:.0f},{middle:.0f} {x_1:.0f},{y_1:.0f}"
    return f'<path class="{kind}" d="{path}"/>'


_LEGEND = (
    "An arrow or a line goes from what imports to what is imported.",
    "Those that a longer path stands for are left out. Dashed: imported when it is first used.",
)
_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="-{margin} -{margin} {width} {height}">
<style>
text {{ font: 12px ui-monospace, Menlo, Consolas, monospace; fill: #1f2328; text-anchor: middle }}
text.folder {{ text-anchor: start; font-weight: bold }}
text.legend {{ font-family: sans-serif; fill: #59636e }}
rect {{ fill: #fff; stroke: #59636e }}
rect.folder {{ fill: #f1f5fa }}
rect.file {{ stroke: #b6c2cf }}
path {{ fill: none; stroke: #59636e }}
path.part {{ stroke-width: 1.5; marker-end: url(#arrow) }}
path.file {{ stroke: #9aa7b4 }}
path.lazy {{ stroke-dasharray: 5 4 }}
</style>
<defs><marker id="arrow" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="6" markerHeight="6" \
orient="auto"><path d="M0,0 L8,4 L0,8 z" style="fill: #59636e; stroke: none"/></marker></defs>
<rect x="-{margin}" y="-{margin}" width="{width}" height="{height}" style="stroke: none"/>
{shapes}
</svg>
"""


if __name__ == "__main__":
    FIGURE.write_text(figure(PACKAGE), "utf-8", newline="\n")
    print(FIGURE)
