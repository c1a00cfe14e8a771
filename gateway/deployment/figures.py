"""What was measured of stages, links and demand, and when a change of it is planned for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.names import engine_of_stage, split_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from synergai.domain import EngineName

CHANGE: Final = 1.25
"""Factor by which a figure differs that is planned for."""
SHARE_CHANGE: Final = 1.5
"""The same for the share of the queries that are for an engine, which bursts change."""
LINK_CHANGE: Final = 2.0
"""The same for the speed of a link, which other transfers over it may halve."""
_AGAIN_S: Final = 10.0
"""Time until another change of a figure is planned for, if the last plan for it has changed
nothing: the time of a stage, the speed of a link, or the share of the queries that are for an
engine. It is twice as long after each further one."""
_LONGEST_AGAIN_S: Final = 320.0
_CALM_S: Final = 10.0
"""Time until a change of any figure is planned for, if the last plan for one has changed stages. It
is four times as long after each further one that follows within `_RESTLESS_S`."""
_RESTLESS_S: Final = 120.0


class Cause(NamedTuple):
    """What is planned for, or has changed: a text with the name of an engine or stage, if any."""

    before: str
    name: str = ""
    after: str = ""
    change: str = ""
    factor: float = CHANGE

    def told_of(self, engine: EngineName) -> str:
        """Return the text for those who may observe an engine, and maybe no other."""
        name = self.name
        if name and _without_version(name) != _without_version(engine):
            name = "another engine"
        return " ".join(filter(None, (self.before, name, self.after, self.change)))


class Figures:
    """The figures that were planned with, and pauses in which no change of them is planned for."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._planned: dict[Cause, float] = {}
        # By figure: a time, and when it is over; and the same for all of them.
        self._pauses: dict[Cause, tuple[float, float]] = {}
        self._calm_s, self._calm_until = 0.0, -_RESTLESS_S

    def set_planned(self, figures: Mapping[Cause, float]) -> None:
        """Set the figures that are planned with."""
        self._planned = dict(figures)

    def __contains__(self, cause: object) -> bool:
        """Whether a figure was planned with."""
        return cause in self._planned

    def add_planned(self, figures: Mapping[Cause, float]) -> None:
        """Add figures that were measured or predicted while a plan was made."""
        self._planned |= figures

    def change(self, figures: Mapping[Cause, float]) -> Cause | None:
        """Return a figure that is new, or differs from the one planned with; None if none is."""
        now = self._clock()
        if now < self._calm_until:
            return None
        for what, figure in figures.items():
            _, end = self._pauses.get(what, (0.0, now))
            before = self._planned.get(what)
            if now < end or (
                before is not None and before / what.factor <= figure <= before * what.factor
            ):
                continue
            change = "has risen" if before is not None and figure > before else "has fallen"
            return what._replace(change="is known" if before is None else change)
        return None

    def pause(self, cause: Cause, *, is_alike: bool) -> None:
        """Pause after a plan for a change, which may want what the last one did."""
        now, figure = self._clock(), cause._replace(change="")
        pause_s, _ = self._pauses.pop(figure, (_AGAIN_S / 2, 0.0))
        if is_alike:
            pause_s = min(2 * pause_s, _LONGEST_AGAIN_S)
            self._pauses[figure] = pause_s, now + pause_s
        elif figure in self._planned:
            is_restless = now < self._calm_until + _RESTLESS_S
            self._calm_s = min(4 * self._calm_s, _LONGEST_AGAIN_S) if is_restless else _CALM_S
            self._calm_until = now + self._calm_s


def _without_version(engine: str) -> str:
    """Return the name of an engine, or of that of a stage, by which callers may observe it."""
    return split_version(engine_of_stage(engine))[0]
