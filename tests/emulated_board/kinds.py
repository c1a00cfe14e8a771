"""Data of the two boards: modes, frequency steps and power sensors."""

from dataclasses import dataclass
from typing import Final

UNCAPPED: Final = -1


@dataclass(frozen=True, slots=True)
class BoardMode:
    """One power mode, as defined in the board's own file.

    Attributes:
        number: the board's id of the mode.
        name: the board's name of the mode.
        cores: number of online cores, counted from the first.
        cpu_khz: CPU clock cap; -1 means none.
        gpu_hz: GPU clock cap; -1 means none.
        emc_hz: memory clock cap; 0 means none.
        tpc_mask: mask of the GPU parts that are off.
        gpu_min_hz: lower bound of the GPU clock.
        oc_warn_ma: overcurrent warning threshold; 0 if the modes do not set it.
    """

    number: int
    name: str
    cores: int
    cpu_khz: int
    gpu_hz: int
    emc_hz: int
    tpc_mask: int = 0
    gpu_min_hz: int = 0
    oc_warn_ma: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardKind:
    """A kind of board.

    Attributes:
        name: the worker class.
        cores: number of CPU cores.
        cpu_min_khz: lower bound of the CPU clock in all modes.
        cpu_steps_khz: frequency steps of the CPU.
        gpu_steps_hz: frequency steps of the GPU.
        modes: all power modes.
        default: id of the default mode at boot.
        rails: power in mW by rail, by I2C address of the sensor.
    """

    name: str
    cores: int
    cpu_min_khz: int
    cpu_steps_khz: tuple[int, ...]
    gpu_steps_hz: tuple[int, ...]
    modes: tuple[BoardMode, ...]
    default: int
    rails: dict[str, dict[str, int]]

    def mode(self, number: int) -> BoardMode:
        return next(mode for mode in self.modes if mode.number == number)


def _mhz(*steps: float) -> tuple[int, ...]:
    return tuple(round(step * 1_000_000) for step in steps)


AGX_XAVIER: Final = BoardKind(
    name="agx-xavier",
    cores=8,
    cpu_min_khz=1_200_000,
    cpu_steps_khz=tuple(range(115_200, 2_265_601, 76_800)),
    gpu_steps_hz=_mhz(114.75, 318.75, 420.75, 522.75, 624.75, 675.75, 828.75, 905.25, 1377),
    modes=(
        BoardMode(0, "MAXN", 8, UNCAPPED, UNCAPPED, 0),
        BoardMode(1, "MODE_10W", 2, 1_200_000, 520_000_000, 1_065_600_000, 5),
        BoardMode(2, "MODE_15W", 4, 1_200_000, 670_000_000, 1_331_200_000),
        BoardMode(3, "MODE_30W_ALL", 8, 1_200_000, 900_000_000, 1_600_000_000),
        BoardMode(4, "MODE_30W_6CORE", 6, 1_450_000, 900_000_000, 1_600_000_000),
        BoardMode(5, "MODE_30W_4CORE", 4, 1_780_000, 900_000_000, 1_600_000_000),
        BoardMode(6, "MODE_30W_2CORE", 2, 2_100_000, 900_000_000, 1_600_000_000),
        BoardMode(7, "MODE_15W_DESKTOP", 4, 2_188_800, 670_000_000, 1_331_200_000, 0, 318_750_000),
    ),
    default=2,
    rails={
        "1-0040": {"GPU": 1155, "CPU": 385, "SOC": 2504},
        "1-0041": {"CV": 0, "VDDRQ": 192, "SYS5V": 2692},
    },
)

XAVIER_NX: Final = BoardKind(
    name="xavier-nx",
    cores=6,
    cpu_min_khz=1_190_400,
    cpu_steps_khz=(*range(115_200, 1_881_601, 76_800), 1_907_200),
    gpu_steps_hz=_mhz(114.75, 204, 306, 408, 510, 599.25, 701.25, 803.25, 905.25, 1109.25),
    modes=tuple(
        BoardMode(number, name, cores, cpu, gpu, emc, 1, 0, warn)
        for number, name, cores, cpu, gpu, emc, warn in (
            (0, "MODE_15W_2CORE", 2, 1_907_200, 1_109_250_000, 1_600_000_000, 3000),
            (1, "MODE_15W_4CORE", 4, 1_420_800, 1_109_250_000, 1_600_000_000, 3000),
            (2, "MODE_15W_6CORE", 6, 1_420_800, 1_109_250_000, 1_600_000_000, 3000),
            (3, "MODE_10W_2CORE", 2, 1_497_600, 803_250_000, 1_600_000_000, 3000),
            (4, "MODE_10W_4CORE", 4, 1_190_400, 803_250_000, 1_600_000_000, 3000),
            (5, "MODE_10W_DESKTOP", 4, 1_907_200, 510_000_000, 1_600_000_000, 3000),
            (6, "MODE_20W_2CORE", 2, 1_907_200, 1_109_250_000, 1_866_000_000, 4000),
            (7, "MODE_20W_4CORE", 4, 1_420_800, 1_109_250_000, 1_866_000_000, 4000),
            (8, "MODE_20W_6CORE", 6, 1_420_800, 1_109_250_000, 1_866_000_000, 4000),
        )
    ),
    default=4,
    rails={"7-0040": {"VDD_IN": 5060, "VDD_CPU_GPU_CV": 1100, "VDD_SOC": 1350}},
)

KINDS: Final = {kind.name: kind for kind in (AGX_XAVIER, XAVIER_NX)}
