"""The fleet page of a recording, as one file that needs no other."""

from __future__ import annotations

import base64
import hashlib
import math
from typing import TYPE_CHECKING

from msgspec import Raw, Struct

from profiler.simulator.recording import recorded_steps
from synergai.errors import InvalidInput
from synergai.fleet_page import SCRIPTS, read_file
from synergai.fleet_page.page_state import INTERVAL_S, Batch, PageState, encode

if TYPE_CHECKING:
    from pathlib import Path


class _Recording(Struct):
    title: str
    began: float
    ended: float
    batches: list[Raw]


def render_recording(path: Path) -> str:
    """Return the page of an event log, which needs no other file."""
    # The browser takes "</script>" and "<!--" inside the data for the end of it.
    data = encode(_read_recording(path)).decode().replace("<", "\\u003c")
    script, style = "\n".join(map(read_file, SCRIPTS)), read_file("page.css")
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="content-security-policy" content="{policy}">\n<style>{style}</style>'
    body = (
        f'<script type="application/json" id="recording">{data}</script>\n<script>{script}</script>'
    )
    page = read_file("page.html")
    page = page.replace('<link rel="stylesheet" href="fleet/page.css">', head)
    links = "".join(f'<script src="fleet/{name}" defer></script>\n' for name in SCRIPTS)
    return page.replace(links, f"{body}\n")


def _read_recording(path: Path) -> _Recording:
    page = PageState(watched=True)
    batches: list[Raw] = []
    began, ended, due = math.inf, 0.0, math.inf
    for event, at, commands in recorded_steps(path):
        if began == math.inf:
            began, due = at, at + INTERVAL_S
        elif at >= due:
            # Encoded at once: the page will change the records.
            batches.append(Raw(encode(Batch(ended, page.take()))))
            due = at + INTERVAL_S
        page.record(event, at, commands)
        ended = at
    if began == math.inf:
        raise InvalidInput(f"{path}: the event log has no events")
    batches.append(Raw(encode(Batch(ended, page.take()))))
    return _Recording(path.name, began, ended, batches)


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
