"""Selectors of the workers that an engine version is placed on.

A selector is a list of terms, such as ``class=agx-xavier,label=line-3``, all of which a worker must
match; ``worker=`` may be left out. Values are shell-style patterns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.entry.access.roles import matches
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

MAX_SELECTORS: Final = 64
_MAX_TEXT: Final = 256
_KEYS: Final = ("worker", "class", "label")


def parse_placement(texts: Sequence[str]) -> tuple[str, ...]:
    """Return valid selectors in their full form, without duplicates."""
    if len(texts) > MAX_SELECTORS:
        raise InvalidInput(f"a version has at most {MAX_SELECTORS} selectors of workers")
    return tuple(dict.fromkeys(_parse(text) for text in texts))


def selects(
    placement: Sequence[str], worker_id: str, worker_class: str, labels: Collection[str]
) -> bool:
    """Return whether one of some valid selectors matches a worker; none at all match every one."""
    return not placement or any(
        all(_term_matches(term, worker_id, worker_class, labels) for term in selector.split(","))
        for selector in placement
    )


def _term_matches(term: str, worker_id: str, worker_class: str, labels: Collection[str]) -> bool:
    key, _, pattern = term.partition("=")
    match key:
        case "worker":
            return matches(pattern, worker_id)
        case "class":
            return matches(pattern, worker_class)
        case _:
            return any(matches(pattern, label) for label in labels)


def _parse(text: str) -> str:
    terms = []
    for part in text.split(","):
        key, separator, pattern = part.strip().rpartition("=")
        key = key.strip() if separator else "worker"
        pattern = pattern.strip()
        if key not in _KEYS or not pattern or not pattern.isprintable() or len(text) > _MAX_TEXT:
            raise InvalidInput(
                f"{text[:_MAX_TEXT]!r} does not select workers: write class=NAME, label=NAME or "
                "worker=ID, or several of them with commas"
            )
        terms.append(f"{key}={pattern}")
    return ",".join(sorted(set(terms)))
