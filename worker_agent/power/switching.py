"""The way of a switch: look first, act, wait until it has settled, believe only what is read.

What decides is the reading, in both directions: a program that reports an error after it did
everything has switched, one that reports success and did nothing has not.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from worker_agent.power.controller import Switch, SwitchFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_agent.power.controller import Reading

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a machine is given to follow. Times in seconds.

    Attributes:
        settle: for so long the reading must stay the wanted one.
        limit: after so long it is not waited for any more.
        pause: between two readings.
        clock: monotonic.
        sleep: waits for some seconds.
    """

    settle: float = 1.0
    limit: float = 10.0
    pause: float = 0.2
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def switch(
    mode: str, *, read: Callable[[], Reading], apply: Callable[[str], str], patience: Patience
) -> Switch:
    """Put `mode` in force; if the machine ends in no mode at all, go back to the one before.

    A machine that ends in another whole mode is left there: somebody else chose it.

    Args:
        mode: the wanted one.
        read: what is in force.
        apply: asks the machine for a mode; returns what it complained about, or an empty text.
        patience: how long to wait.

    Raises:
        SwitchFailed: the machine did not follow.
    """
    started = patience.clock()
    before = read()
    if before.mode == mode:
        return Switch(mode, 0.0)
    complaint = apply(mode)
    # Whoever complains is done; only one who is content may still be on the way.
    reading = _settle(mode, read, replace(patience, limit=0.0) if complaint else patience)
    if reading.mode == mode:
        if complaint:
            _log.warning("power mode %s is in force, though it was said: %s", mode, complaint)
        return Switch(mode, patience.clock() - started)
    what = complaint or reading.detail or f"it is in {reading.mode}"
    if reading.mode:
        raise SwitchFailed(f"power mode {mode} was not reached ({what})", reading)
    if before.mode:
        apply(before.mode)
        reading = _settle(before.mode, read, patience)
    end = f"the machine is in {reading.mode}" if reading.mode else "the machine is in no known mode"
    raise SwitchFailed(f"power mode {mode} was not reached ({what}); {end}", reading)


def _settle(mode: str, read: Callable[[], Reading], patience: Patience) -> Reading:
    """Wait until `mode` has been read for long enough, or it is too late."""
    started = patience.clock()
    since: float | None = None
    while True:
        reading = read()
        now = patience.clock()
        if reading.mode != mode:
            since = None
        elif since is None:
            since = now
        if since is not None and now - since >= patience.settle:
            return reading
        if since is None and now - started >= patience.limit:
            return reading
        patience.sleep(patience.pause)
