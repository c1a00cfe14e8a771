"""Power mode switching with verification: apply, wait until the machine has settled, read back.

Only the reading decides on success: a program may report an error after a complete switch, or
success without any effect.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from worker_agent.power.controller import SwitchFailed, SwitchResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_agent.power.controller import Reading

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SwitchTiming:
    """Timing of a switch, in seconds.

    Attributes:
        settle: duration for which the reading must remain the wanted mode.
        timeout: maximum wait for the wanted mode.
    """

    settle: float = 1.0
    timeout: float = 10.0
    interval: float = 0.2
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def switch(
    mode: str, *, read: Callable[[], Reading], apply: Callable[[str], str], timing: SwitchTiming
) -> SwitchResult:
    """Switch to `mode`; if the machine ends in no known mode, switch back to the previous one.

    A machine that ends in another valid mode is left there: another program chose it. `apply`
    returns an error message, or an empty string.
    """
    started = timing.clock()
    before = read()
    if before.mode == mode:
        return SwitchResult(mode, 0.0)
    failure = apply(mode)
    # After an error nothing more will happen, so do not wait for the mode.
    reading = _settle(mode, read, replace(timing, timeout=0.0) if failure else timing)
    if reading.mode == mode:
        if failure:
            _log.warning("power mode %s is in force in spite of an error: %s", mode, failure)
        return SwitchResult(mode, timing.clock() - started)
    reason = failure or reading.detail or f"it is in {reading.mode}"
    if reading.mode:
        raise SwitchFailed(f"power mode {mode} was not reached ({reason})", reading)
    if before.mode:
        apply(before.mode)
        reading = _settle(before.mode, read, timing)
    end = f"the machine is in {reading.mode}" if reading.mode else "the machine is in no known mode"
    raise SwitchFailed(f"power mode {mode} was not reached ({reason}); {end}", reading)


def _settle(mode: str, read: Callable[[], Reading], timing: SwitchTiming) -> Reading:
    """Wait until `mode` has been read for the settling time, or until the timeout."""
    started = timing.clock()
    since: float | None = None
    while True:
        reading = read()
        now = timing.clock()
        if reading.mode != mode:
            since = None
        elif since is None:
            since = now
        if since is not None and now - since >= timing.settle:
            return reading
        if since is None and now - started >= timing.timeout:
            return reading
        timing.sleep(timing.interval)
