"""Figures that are light enough for a repository and for a page that has them inside."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..atomic import replacing

LARGEST: Final = 150_000  # bytes of a figure
COLOURS: Final = (256, 128, 64, 32)  # that a figure of lines gets by with


def light_figures(paths: Sequence[Path], folder: Path) -> list[Path]:
    """The figures in a folder, a file each: as SVG where that is small, else as PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    stems = dict.fromkeys(path.with_suffix("") for path in paths)
    kinds = {path.suffix: path for path in paths}
    return [
        _light(stem, [k for k in kinds if stem.with_suffix(k) in paths], folder) for stem in stems
    ]


def _light(stem: Path, kinds: Sequence[str], folder: Path) -> Path:
    drawn, shown = stem.with_suffix(".svg"), stem.with_suffix(".png")
    if ".svg" in kinds and (".png" not in kinds or drawn.stat().st_size <= LARGEST):
        return Path(shutil.copyfile(drawn, folder / drawn.name))
    return _light_png(shown, folder / shown.name)


def _light_png(path: Path, target: Path) -> Path:
    """The picture as it is, or in as many colours as it may have."""
    from PIL import Image

    if path.stat().st_size <= LARGEST:
        return Path(shutil.copyfile(path, target))
    with Image.open(path) as image:
        whole = image.convert("RGB")
    for colours in COLOURS:
        with replacing(target) as partial:
            # without dithering, which would scatter dots over the white and help no line
            whole.quantize(colours, dither=Image.Dither.NONE).save(partial, optimize=True)
        if target.stat().st_size <= LARGEST:
            break
    return target
