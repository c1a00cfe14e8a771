"""Explanations of requests and jobs, for callers who may see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gateway.access.engines import READERS
from synergai.errors import NotFound
from synergai.explanations.wording import duration, worded
from synergai.scheduling.rules.history import KEPT

if TYPE_CHECKING:
    from gateway.access.caller import Caller
    from gateway.dispatch.dispatcher import Dispatcher
    from synergai.explanations.facts import Ahead, Explanation

_QUOTED: Final = 128


def explain(caller: Caller, dispatcher: Dispatcher, name: str) -> Explanation:
    """Return the newest explanation under an id, or of all, that a caller may see."""
    caller.check_valid()
    for found in dispatcher.explain(name):
        if caller.may(*READERS, engine=found.engine, tenant=found.tenant):
            ahead = tuple(_visible(each, caller) for each in found.ahead)
            return worded(replace(found, ahead=ahead))
    kept_s = dispatcher.explained_s()
    since = "" if kept_s is None else f", at present those of the last {duration(kept_s)}"
    what = f"nothing is known of {name[:_QUOTED]!r}" if name else "there is nothing to explain"
    raise NotFound(
        f"{what}: the gateway keeps the last {KEPT:,} requests and "
        f"jobs that were late, refused or failed{since}, and none that were in time"
    )


def _visible(ahead: Ahead, caller: Caller) -> Ahead:
    """Hide what a caller may not see of other work."""
    if caller.may(*READERS, engine=ahead.engine, tenant=ahead.tenant):
        return ahead
    return replace(ahead, engine="", job="", tenant="")
