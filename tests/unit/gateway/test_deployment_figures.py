"""Changes of figures that are planned for."""

from gateway.deployment.figures import LINK_CHANGE, Cause, Figures
from tests.clocks import FakeClock

TIME, SPEED = Cause("the time of", "net.s0-4", "on a"), Cause("the speed of the link")


def test_changes_that_move_stages_again_and_again_are_planned_for_ever_more_rarely() -> None:
    clock = FakeClock()
    figures = Figures(clock)
    seconds, waits = 0.1, []
    figures.set_planned({TIME: seconds})
    for _ in range(5):
        begun, seconds = clock.now, 2 * seconds
        while (cause := figures.change({TIME: seconds})) is None:
            clock.now += 1.0
        waits.append(clock.now - begun)
        figures.set_planned({TIME: seconds})
        figures.pause(cause, is_alike=False)
    assert waits == [0.0, 10.0, 40.0, 160.0, 320.0]
    clock.now += 320.0 + 121.0
    assert figures.change({TIME: 2 * seconds}) is not None
    figures.pause(TIME, is_alike=False)
    clock.now += 10.0
    assert figures.change({TIME: 4 * seconds}) is not None


def test_change_that_moved_no_stage_pauses_its_own_figure_only() -> None:
    clock = FakeClock()
    figures = Figures(clock)
    figures.set_planned({TIME: 0.1, SPEED: 1.0})
    changed = figures.change({TIME: 0.2, SPEED: 1.0})
    assert changed == TIME._replace(change="has risen")
    figures.set_planned({TIME: 0.2, SPEED: 1.0})
    figures.pause(changed, is_alike=True)
    assert figures.change({TIME: 0.1, SPEED: 0.5}) == SPEED._replace(change="has fallen")
    assert figures.change({TIME: 0.1, SPEED: 1.0}) is None


def test_link_is_planned_for_once_its_speed_has_more_than_doubled_or_halved() -> None:
    figures, link = Figures(FakeClock()), SPEED._replace(factor=LINK_CHANGE)
    figures.set_planned({link: 100.0})
    assert figures.change({link: 52.0}) is None
    assert figures.change({link: 190.0}) is None
    assert figures.change({link: 48.0}) == link._replace(change="has fallen")
    assert figures.change({link: 210.0}) == link._replace(change="has risen")
