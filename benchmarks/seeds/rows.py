"""Rows of what is printed and what is computed, and their table."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from importlib.resources import files
from typing import Final, TypeAlias

import msgspec

from benchmarks.report import table
from profiler.reports.charts import Bars
from profiler.reports.drawing import is_dwarfed

Figures: TypeAlias = dict[str, str]
"""Computed figures by key, as they are shown."""
Group: TypeAlias = Callable[[], Figures]
"""Computes some of a seed's figures."""
SEPARATOR: Final = ", "
"""Between the computed figures of a row."""


_NUMBER: Final = re.compile(r"[+-]?\d+(?:\.\d+)?")


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A printed result.

    Attributes:
        key: of the computed figure; empty if there is none.
        why: letters of the reasons for a difference, and why a figure is missing.
        shown: its name in the chart; empty if it is not there.
    """

    what: str
    printed: str
    key: str = ""
    why: str = ""
    shown: str = ""


class Seed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The printed results of a thesis or paper, and by letter why ours differ.

    Attributes:
        title: of its chart, with the label of the axis.
        part: which of several computed figures of a row the chart shows.
    """

    title: str
    label: str
    part: int
    rows: list[Row]
    reasons: dict[str, str]


PRINTED: Final = msgspec.convert(
    tomllib.loads(files("benchmarks.seeds").joinpath("printed.toml").read_text("utf-8")),
    dict[str, Seed],
)


def comparison(seed: Seed, figures: Figures) -> str:
    """Return the table of a seed, and the reasons below it.

    Raises:
        KeyError: a row has no figure.
    """
    rows = [
        [row.what, row.printed, figures[row.key] if row.key else "-", row.why] for row in seed.rows
    ]
    reasons = "\n".join(f"- {letter}: {text}" for letter, text in seed.reasons.items())
    return f"{table(['result', 'printed', 'ours', 'why'], rows)}\n\n{reasons}"


def key_chart(seed: Seed, figures: Figures) -> Bars:
    """Return the chart of the rows that are shown."""
    rows = [row for row in seed.rows if row.shown]
    values = {row.shown: _number(figures[row.key].split(SEPARATOR)[seed.part]) for row in rows}
    printed = {row.shown: _number(row.printed) for row in rows if _NUMBER.match(row.printed)}
    return Bars(
        title=seed.title,
        label=seed.label,
        log=is_dwarfed(values.values()),
        lengths=values,
        printed=printed,
    )


def _number(text: str) -> float:
    found = _NUMBER.match(text)
    assert found is not None, text
    return float(found.group())
