"""The numbers that the thesis prints, with the table, figure or text they are from.

All are of F. Stathopoulou's diploma thesis (2025), chapters 5 and 7. Where the thesis contradicts
itself, the value is the one of the text about the figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from profiler.reports.wording import TIMES

QUERIES: Final = 3900
"""Queries per measurement of chapter 5. Not printed; the only number that agrees with the QPS and
times printed for Figure 5.1."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A power mode of Table 5.2.

    Attributes:
        board: worker class: ``agx`` or ``nx``.
        number: the thesis's number.
        name: the board's own name.
        mhz: largest clock of the CPU.
        watts: power budget; None for no limit (MAXN).
    """

    board: str
    number: int
    name: str
    mhz: float
    cores: int
    watts: float | None


MODES: Final = (
    Mode("agx", 1, "MODE_30W_ALL", 1200, 8, 30),
    Mode("agx", 2, "MODE_30W_6CORE", 1450, 6, 30),
    Mode("agx", 3, "MODE_30W_4CORE", 1780, 4, 30),
    Mode("agx", 4, "MODE_30W_2CORE", 2100, 2, 30),
    Mode("agx", 5, "MODE_15W_DESKTOP", 2188, 4, 15),
    Mode("agx", 6, "MAXN", 2266, 8, None),
    Mode("nx", 1, "MODE_10W_4CORE", 1200, 4, 10),
    Mode("nx", 2, "MODE_15W_4CORE", 1400, 4, 15),
    Mode("nx", 3, "MODE_20W_4CORE", 1400, 4, 20),
    Mode("nx", 4, "MODE_15W_6CORE", 1400, 6, 15),
    Mode("nx", 5, "MODE_20W_6CORE", 1400, 6, 20),
    Mode("nx", 6, "MODE_10W_2CORE", 1500, 2, 10),
    Mode("nx", 7, "MODE_15W_2CORE", 1900, 2, 15),
    Mode("nx", 8, "MODE_20W_2CORE", 1900, 2, 20),
    Mode("nx", 9, "MODE_10W_DESKTOP", 1900, 4, 10),
)
"""Table 5.2, with the names of the modes that have the same limits."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A printed number.

    Attributes:
        key: identifies the quantity; the reports compute it under the same key.
        source: where it is printed.
        text: the number as printed, whose last digit gives its precision.
    """

    key: str
    source: str
    what: str
    text: str
    unit: str

    @property
    def value(self) -> float:
        """The number."""
        return float(self.text)

    @property
    def tolerance(self) -> float:
        """Half a unit of the last printed digit."""
        return 0.5 * 10.0 ** -len(self.text.partition(".")[2])


def _distribution(
    key: str, source: str, what: str, low: str, mean: str, high: str, unit: str
) -> tuple[Fact, ...]:
    parts = (("low", "least", low), ("mean", "mean", mean), ("high", "greatest", high))
    return tuple(
        Fact(f"{key}.{k}", source, f"{name} {what}", text, unit) for k, name, text in parts
    )


def _ratios(
    key: str, source: str, what: str, printed: dict[str, str], unit: str = TIMES
) -> tuple[Fact, ...]:
    return tuple(
        Fact(f"{key}.{value}", source, what.format(value), text, unit)
        for value, text in printed.items()
    )


CHARACTERISATION: Final = (
    *_distribution("workers.x86.qps", "Fig. 5.1", "QPS on x86", "16.5", "52.3", "259", "q/s"),
    *_distribution("workers.agx.qps", "Fig. 5.1", "QPS on AGX", "5.7", "19", "39.3", "q/s"),
    *_distribution("workers.nx.qps", "Fig. 5.1", "QPS on NX", "5.6", "12.5", "22", "q/s"),
    *_distribution(
        "workers.x86.total", "Fig. 5.1", "total time on x86", "0.46", "2.4", "4.3", "min"
    ),
    *_distribution(
        "workers.agx.total", "Fig. 5.1", "total time on AGX", "1.8", "4.6", "11.5", "min"
    ),
    *_distribution("workers.nx.total", "Fig. 5.1", "total time on NX", "3.1", "6.8", "11.6", "min"),
    Fact("workers.agx.qps_ratio", "Q1", "QPS of x86 over AGX", "2.8", TIMES),
    Fact("workers.nx.qps_ratio", "Q1", "QPS of x86 over NX", "4.2", TIMES),
    Fact("workers.agx.total_ratio", "Q1", "total time of AGX over x86", "2", TIMES),
    Fact("workers.nx.total_ratio", "Q1", "total time of NX over x86", "2.8", TIMES),
    Fact("workers.agx.t_pre_ratio", "Fig. 5.1", "T_pre of AGX over x86", "1.10", TIMES),
    Fact("workers.nx.t_pre_ratio", "Fig. 5.1", "T_pre of NX over x86", "1.76", TIMES),
    *_ratios(
        "threads.x86.qps",
        "Fig. 5.2, Q2",
        "QPS with {} threads over one",
        {"2": "1.6", "4": "2.5", "8": "3.8", "16": "4.5"},
    ),
    *_ratios(
        "threads.x86.total",
        "Fig. 5.2, Q2",
        "total time with one thread over {}",
        {"2": "1.6", "4": "2.3", "8": "2.9", "16": "3.0"},
    ),
    Fact("threads.x86.t_pre", "Q2", "largest reduction of T_pre by threads", "21", "%"),
    Fact("threads.x86.pearson", "Q3", "mean correlation of threads and QPS", "0.83", ""),
    *_distribution(
        "modes.agx.6.qps", "Fig. 5.3", "QPS on AGX, mode 6", "4.8", "18.4", "39.8", "q/s"
    ),
    *_distribution(
        "modes.agx.6.total", "Fig. 5.3", "total time on AGX, mode 6", "1.8", "5.1", "13.6", "min"
    ),
    *_distribution(
        "modes.agx.1.qps", "Fig. 5.3", "QPS on AGX, mode 1", "4.8", "8.2", "17.3", "q/s"
    ),
    *_distribution(
        "modes.agx.1.total", "Fig. 5.3", "total time on AGX, mode 1", "4.1", "11.4", "28.5", "min"
    ),
    *_distribution("modes.nx.9.qps", "Fig. 5.3", "QPS on NX, mode 9", "5.6", "14.3", "23.3", "q/s"),
    *_distribution(
        "modes.nx.9.total", "Fig. 5.3", "total time on NX, mode 9", "2.9", "5.8", "11.6", "min"
    ),
    *_distribution("modes.nx.1.qps", "Fig. 5.3", "QPS on NX, mode 1", "1.8", "5.5", "8.1", "q/s"),
    *_distribution(
        "modes.nx.1.total", "Fig. 5.3", "total time on NX, mode 1", "8.4", "16.9", "36", "min"
    ),
    *_ratios(
        "modes.agx.ratio",
        "Q4",
        "QPS on AGX of mode 6 over mode {}",
        {"5": "1.3", "4": "1.4", "3": "1.8", "2": "2.0", "1": "2.2"},
    ),
    *_ratios(
        "modes.nx.ratio",
        "Q4",
        "QPS on NX of mode 9 over mode {}",
        {
            "8": "1.2",
            "7": "1.2",
            "6": "1.5",
            "5": "1.3",
            "4": "1.3",
            "3": "1.3",
            "2": "1.3",
            "1": "2.5",
        },
    ),
    *_ratios(
        "knobs.agx.clock",
        "Fig. 5.4, Q5",
        "QPS on AGX at {} MHz over 1200 MHz",
        {"1450": "1.025", "1780": "1.35", "2100": "1.7", "2188": "1.8", "2266": "2.3"},
    ),
    *_ratios(
        "knobs.agx.cores",
        "Fig. 5.4, Q5",
        "QPS on AGX with {} CPUs over 2",
        {"4": "0.92", "6": "0.59", "8": "0.99"},
    ),
    *_ratios(
        "knobs.nx.clock",
        "Fig. 5.5, Q5",
        "QPS on NX at {} MHz over 1200 MHz",
        {"1500": "1.7", "1400": "2.0", "1900": "2.3"},
    ),
    *_ratios(
        "knobs.nx.cores",
        "Fig. 5.5, Q5",
        "QPS on NX with {} CPUs over 2",
        {"4": "0.98", "6": "1.04"},
    ),
    *_ratios(
        "knobs.nx.budget",
        "Fig. 5.5, Q5",
        "mean QPS on NX with a budget of {} W",
        {"10": "9.7", "15": "11.3", "20": "11.3"},
        "q/s",
    ),
)
"""Chapter 5."""

EXPERIMENTS: Final = ("DL-FL", "DL-FH", "DH-FL", "DH-FH")
JOBS: Final = 24


@dataclass(frozen=True, slots=True)
class PrintedCell:
    """One run of chapter 7.

    Attributes:
        wait_s: mean waiting time.
        derived: whether times were derived from a printed ratio.
    """

    violations: int
    wait_s: float
    excess_s: float
    derived: bool = False


CELLS: Final = {
    ("rr", "DL-FL"): PrintedCell(11, 11.5, 39.9),
    ("rr", "DL-FH"): PrintedCell(16, 93.6, 84.0),
    ("rr", "DH-FL"): PrintedCell(11, 9.8, 74.4),
    ("rr", "DH-FH"): PrintedCell(17, 84.0, 114.0),
    ("srr", "DL-FL"): PrintedCell(18, 216.0, 258.0),
    ("srr", "DL-FH"): PrintedCell(21, 798.0, 822.0),
    ("srr", "DH-FL"): PrintedCell(19, 212.0, 298.0),
    ("srr", "DH-FH"): PrintedCell(21, 774.0, 852.0),
    ("lru", "DL-FL"): PrintedCell(14, 18.8, 46.7),
    ("lru", "DL-FH"): PrintedCell(15, 81.6, 78.0),
    ("lru", "DH-FL"): PrintedCell(14, 6.26, 79.8),
    ("lru", "DH-FH"): PrintedCell(17, 72.0, 108.0),
    ("mru", "DL-FL"): PrintedCell(5, 0.0, 20.7),
    ("mru", "DL-FH"): PrintedCell(16, 84.6, 78.0),
    ("mru", "DH-FL"): PrintedCell(5, 0.0, 31.84),
    ("mru", "DH-FH"): PrintedCell(18, 108.0, 141.0),
    ("be", "DL-FL"): PrintedCell(3, 0.0, 13.4),
    ("be", "DL-FH"): PrintedCell(16, 85.2, 84.0),
    ("be", "DH-FL"): PrintedCell(5, 0.0, 35.03),
    ("be", "DH-FH"): PrintedCell(16, 66.0, 84.0),
    ("slo_mael", "DL-FL"): PrintedCell(5, 31.5, 7.1),
    ("slo_mael", "DL-FH"): PrintedCell(13, 93.5, 83.0, derived=True),
    ("slo_mael", "DH-FL"): PrintedCell(10, 35.5, 16.0, derived=True),
    ("slo_mael", "DH-FH"): PrintedCell(17, 90.0, 122.0, derived=True),
    ("synergai", "DL-FL"): PrintedCell(2, 0.0, 2.3),
    ("synergai", "DL-FH"): PrintedCell(6, 49.2, 37.7),
    ("synergai", "DH-FL"): PrintedCell(2, 0.0, 4.59),
    ("synergai", "DH-FH"): PrintedCell(11, 60.0, 66.0),
}
"""Figures 7.3 to 7.7 by policy and experiment: one run each."""

P99_OVER_SYNERGAI: Final = {
    "DL-FL": {"be": 2.1, "mru": 2.3, "rr": 2.4, "lru": 2.4, "srr": 3.6},
    "DH-FL": {"be": 2.50, "lru": 2.43, "mru": 2.27, "rr": 2.51, "srr": 3.51},
}
"""99th percentile of the end-to-end time over SynergAI's."""

TABLE_7_1: Final[dict[str, tuple[float, float, float, float, float, float, float, float]]] = {
    "onnx_mobilenet_op11": (99.40, 179.23, 49.70, 89.61, 24.85, 44.81, 12.44, 22.43),
    "onnx_mobilenet_op8": (112.92, 181.18, 56.46, 90.59, 28.23, 45.30, 14.13, 22.67),
    "onnx_resnet50_op11": (339.48, 633.63, 169.74, 316.82, 84.87, 158.41, 42.48, 79.29),
    "onnx_resnet50_op8": (336.46, 630.56, 168.23, 315.28, 84.12, 157.64, 42.10, 78.90),
    "onnx_ssd_op11": (230.09, 396.95, 115.04, 198.47, 57.52, 99.24, 28.79, 49.67),
    "onnx_ssd_op8": (271.74, 407.74, 135.87, 203.87, 67.94, 101.93, 34.00, 51.02),
    "tf_mobilenet": (172.31, 202.33, 86.15, 101.16, 43.08, 50.58, 21.56, 25.32),
    "tf_mobilenet_q": (205.44, 231.36, 102.72, 115.68, 51.36, 57.84, 25.71, 28.95),
    "tf_resnet50": (693.64, 865.31, 346.82, 432.65, 173.41, 216.33, 86.79, 108.27),
    "tf_ssd": (386.29, 463.02, 193.14, 231.51, 96.57, 115.76, 48.34, 57.94),
    "tfl_mobilenet": (196.18, 240.45, 98.09, 120.22, 49.05, 60.11, 24.55, 30.09),
    "tfl_mobilenet_q": (278.65, 356.73, 139.33, 178.37, 69.66, 89.18, 34.87, 44.64),
}
"""Table 7.1: QoS times in seconds, 25th percentile and median, for 3900, 1950, 975, 488 queries."""
