"""The paper, figure by figure, table by table, theorem by theorem; `experiments` is the table."""

from typing import Final, Literal, get_args

Scale = Literal["cpu", "paper"]
SCALES: Final[tuple[Scale, ...]] = get_args(Scale)
