"""Rules that choose among the variants of engines, compared in virtual time.

    python -m benchmarks.variants --scenarios single-server --shapes linear,twitter --rates 8

Requests with a deadline of 0.4 s arrive at a changing rate. A late request counts with an accuracy
of 0; relative accuracy is that to the engine's best variant. No rule can exceed the bound, which
knows all arrivals. On one server, the bound on schedules is that of whole variants that run one
after another.
"""

from __future__ import annotations

import argparse
from statistics import fmean
from typing import TYPE_CHECKING, Final

from benchmarks.variants.demand import SHAPES, SPACINGS
from benchmarks.variants.rules import RULES
from benchmarks.variants.scenarios import RATES, SCENARIOS, draw
from benchmarks.variants.simulation import OURS, Start
from benchmarks.variants.study import compare
from profiler.simulator.simulator_settings import one_of, parse_seeds
from synergai.cli.output import print_json, print_table
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.variants.study import Figures

SUMMARY: Final = ("rule", "relative (%)", "late (%)", f"gain of {OURS}", "least")
COLUMNS: Final = ("scenario", "load", "rule", "accuracy (%)", "relative (%)", "late (%)")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.variants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    rules = [*RULES, OURS]
    add(
        "--scenarios",
        type=_some(list(SCENARIOS), "scenario"),
        default=list(SCENARIOS),
        help=", ".join(SCENARIOS),
    )
    add("--rules", type=_some(rules, "rule"), default=rules, help=", ".join(rules))
    add("--drawn", type=_seeds, default=(), help="seeds of random scenarios, instead of these")
    add("--servers", type=int, default=1, help="of the random scenarios")
    add("--error", type=float, default=0.1, help="deviation of their times, in logarithms")
    add("--shapes", type=_some(list(SHAPES), "shape"), default=["twitter"], help="of the load")
    add("--spacing", choices=SPACINGS, default="poisson", help="how requests follow each other")
    add("--rates", type=_rates, default=(), help="requests per second of all engines together")
    add("--seconds", type=int, default=600, help="duration of each run")
    add("--seeds", type=_seeds, default=(0, 1, 2), help="one run for each, such as 0-2")
    add("--cold", action="store_true", help="begin with nothing loaded")
    add("--lead", type=float, default=0.0, help="seconds before the first request, with --cold")
    add("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


def _some(names: list[str], kind: str) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        try:
            return [one_of(name, names, kind) for name in text.split(",")]
        except InvalidInput as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse


def _rates(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return parse_seeds(text)
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def compare_all(options: argparse.Namespace) -> Iterator[Figures]:
    """Simulate every rule under every load."""
    start = Start(cold=options.cold, lead_s=options.lead)
    rules, seconds, spacing = options.rules, options.seconds, options.spacing
    for shape in options.shapes:
        for seed in options.drawn:
            scenario, rate = draw(seed, options.servers, options.error)
            yield from compare(
                f"drawn-{seed}", scenario, shape, rate, seconds, (seed,), rules, start, spacing
            )
    for name in () if options.drawn else options.scenarios:
        for shape in options.shapes:
            for rate in options.rates or RATES[name]:
                scenario, seeds = SCENARIOS[name], options.seeds
                yield from compare(
                    name, scenario, shape, rate, seconds, seeds, rules, start, spacing
                )


def summarise(figures: list[Figures]) -> Iterator[list[str]]:
    """Yield mean figures of each rule, and by how much the gateway's own is better."""
    ours = {each.scenario: each.accuracy for each in figures if each.rule == OURS}
    for rule in dict.fromkeys(each.rule for each in figures):
        some = [each for each in figures if each.rule == rule]
        gains = [100 * (ours[each.scenario] - each.accuracy) for each in some]
        late = 100 * fmean(each.violations for each in some)
        accuracy = 100 * fmean(each.accuracy for each in some)
        yield [rule, f"{accuracy:.2f}", f"{late:.2f}", f"{fmean(gains):+.2f}", f"{min(gains):+.2f}"]


def row(figures: Figures) -> list[str]:
    """Return a row of the table."""
    effective = "" if figures.effective is None else f"{100 * figures.effective:.2f}"
    return [
        figures.scenario,
        f"{figures.shape}, {figures.rate:g}/s",
        figures.rule,
        effective,
        f"{100 * figures.accuracy:.2f}",
        "" if figures.rule.startswith("bound") else f"{100 * figures.violations:.2f}",
    ]


def main() -> None:
    """Print the figures."""
    options = parse()
    figures = list(compare_all(options))
    if options.json:
        print_json([each.record() for each in figures])
        return
    print_table(COLUMNS, [row(each) for each in figures])
    if options.drawn:
        print_table(SUMMARY, summarise(figures))


if __name__ == "__main__":
    main()
