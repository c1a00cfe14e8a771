"""A directory with the files and programs of a Jetson board that concern power modes."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.emulated_board.kinds import BoardKind, BoardMode
from worker_agent.power.files import MachineFiles, format_cpus

_CPU: Final = "/sys/devices/system/cpu"
_GPU: Final = "/sys/devices/17000000.gv11b"
_OC: Final = "/sys/devices/platform/c250000.i2c/i2c-7/7-0040/hwmon"
EMC: Final = "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap"
TPC: Final = "/sys/devices/gpu.0/tpc_pg_mask"
STATUS: Final = "/var/lib/nvpmodel/status"
EMULATION: Final = "/emulation"


@dataclass(frozen=True, slots=True)
class EmulatedBoard:
    """An emulated board. Created by `create`.

    Attributes:
        root: its directory.
        jetpack: JetPack release, 4 or 5, which determines the layout of the files.
    """

    kind: BoardKind
    root: Path
    jetpack: int = 4

    @classmethod
    def create(cls, kind: BoardKind, root: Path, jetpack: int = 4) -> EmulatedBoard:
        """Create the board's directory in the state after a boot, in the default mode."""
        board = cls(kind, root, jetpack)
        board._write("/etc/nvpmodel.conf", board._conf())
        board._write_sysfs()
        board._write_sensors()
        board._write("/proc/device-tree/model", f"NVIDIA Jetson {kind.name} (emulated)\0")
        program = Path(__file__).with_name("programs.py").read_text("utf-8")
        for name in ("/usr/sbin/nvpmodel", "/usr/bin/jetson_clocks"):
            # -I -S: it is started for every query, so it should not search for packages.
            board._write(name, f"#!{sys.executable} -IS\n{program}")
            board.files.path(name).chmod(0o755)
        board._write(f"{EMULATION}/board.json", json.dumps(board._program_data(), indent=1))
        board._write(STATUS, f"pmode:{kind.default:04d}")
        board.apply_default_mode()
        return board

    @property
    def files(self) -> MachineFiles:
        """File access to the board, for controllers and sensors."""
        return MachineFiles(self.root)

    def apply_default_mode(self) -> None:
        """Apply the default mode, as the board's service does at boot."""
        for path, value in self._values(self.kind.mode(self.kind.default)):
            self.set(path, str(value))
        online = range(self.kind.mode(self.kind.default).cores)
        self.set(f"{_CPU}/online", format_cpus(online))

    def set(self, path: str, value: str) -> None:
        """Change one file, as the kernel or another program would."""
        self._write(path, f"{value}\n")

    def inject_fault(self, fault: str, *, once: bool = False) -> None:
        """Inject a fault into the board's programs; ``programs.py`` lists the faults."""
        self._write(f"{EMULATION}/fault", f"{fault}{' once' if once else ''}\n")

    def create_gpu_context(self) -> None:
        """Create the GPU's context, after which a change of the mask needs a reboot."""
        self._write(f"{EMULATION}/golden", "")

    def calls(self) -> list[str]:
        log = self.files.path(f"{EMULATION}/calls")
        return log.read_text().splitlines() if log.exists() else []

    def _write(self, path: str, text: str) -> None:
        where = self.files.path(path)
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(text, encoding="utf-8")

    @property
    def _gpu(self) -> str:
        newer = f"{_GPU}/devfreq_dev"
        return newer if self.jetpack >= 5 else f"{_GPU}/devfreq/17000000.gv11b"

    def _write_sysfs(self) -> None:
        steps = self.kind.cpu_steps_khz
        for core in range(self.kind.cores):
            self.set(f"{_CPU}/cpu{core}/online", "1")
            cpufreq = f"{_CPU}/cpu{core}/cpufreq"
            self.set(f"{cpufreq}/scaling_available_frequencies", " ".join(map(str, steps)))
            self.set(f"{cpufreq}/cpuinfo_min_freq", str(steps[0]))
            self.set(f"{cpufreq}/cpuinfo_max_freq", str(steps[-1]))
            self.set(f"{cpufreq}/scaling_min_freq", str(steps[0]))
            self.set(f"{cpufreq}/scaling_max_freq", str(steps[-1]))
        gpu_steps = self.kind.gpu_steps_hz
        self.set(f"{self._gpu}/available_frequencies", " ".join(map(str, gpu_steps)))

    def _write_sensors(self) -> None:
        for number, (address, rails) in enumerate(self.kind.rails.items()):
            for channel, (rail, milliwatts) in enumerate(rails.items()):
                if self.jetpack < 5:
                    folder = f"/sys/bus/i2c/drivers/ina3221x/{address}/iio:device{number}"
                    self.set(f"{folder}/rail_name_{channel}", rail)
                    self.set(f"{folder}/in_power{channel}_input", str(milliwatts))
                else:
                    folder = f"/sys/bus/i2c/devices/{address}/hwmon/hwmon{number + 3}"
                    self.set(f"{folder}/in{channel + 1}_label", rail)
                    self.set(f"{folder}/in{channel + 1}_input", "5000")
                    self.set(f"{folder}/curr{channel + 1}_input", str(milliwatts // 5))
            if self.jetpack >= 5:
                folder = f"/sys/bus/i2c/devices/{address}/hwmon/hwmon{number + 3}"
                self.set(f"{folder}/in7_label", "sum of shunt voltages")
                self.set(f"{folder}/in7_input", "9999")
        if self._has_oc_limit:
            self.set(f"{_OC}/hwmon3/curr1_max", "0")

    @property
    def _has_oc_limit(self) -> bool:
        return any(mode.oc_warn_ma for mode in self.kind.modes)

    def _values(self, mode: BoardMode) -> list[tuple[str, int]]:
        """Return paths and values of the kernel's files with `mode` in force."""
        values = [(f"{_CPU}/cpu{core}/online", int(core < mode.cores)) for core in self._cores()]
        cpu = _step(self.kind.cpu_steps_khz, mode.cpu_khz)
        for core in range(mode.cores):
            lowest = _step(self.kind.cpu_steps_khz, self.kind.cpu_min_khz)
            values.append((f"{_CPU}/cpu{core}/cpufreq/scaling_min_freq", lowest))
            values.append((f"{_CPU}/cpu{core}/cpufreq/scaling_max_freq", cpu))
        values.append((TPC, mode.tpc_mask))
        values.append((f"{self._gpu}/min_freq", _step(self.kind.gpu_steps_hz, mode.gpu_min_hz)))
        values.append((f"{self._gpu}/max_freq", _step(self.kind.gpu_steps_hz, mode.gpu_hz)))
        values.append((EMC, mode.emc_hz))
        if mode.oc_warn_ma:
            values.append((f"{_OC}/hwmon3/curr1_max", mode.oc_warn_ma))
        return values

    def _cores(self) -> range:
        return range(self.kind.cores)

    def _program_data(self) -> dict[str, object]:
        return {
            "cpu": _CPU,
            "cores": self.kind.cores,
            "gpu": self._gpu,
            "tpc": TPC,
            "status": STATUS,
            "modes": {
                mode.number: {"name": mode.name, "tpc": mode.tpc_mask, "values": self._values(mode)}
                for mode in self.kind.modes
            },
        }

    def _conf(self) -> str:
        """Return the content of ``/etc/nvpmodel.conf`` for `kind`."""
        lines = ["# Emulated.", "", "< PARAM TYPE=FILE NAME=CPU_ONLINE >"]
        lines += [f"CORE_{core} {_CPU}/cpu{core}/online" for core in self._cores()]
        lines += ["", "< PARAM TYPE=FILE NAME=TPC_POWER_GATING >", f"TPC_PG_MASK {TPC}"]
        lines += ["", "< PARAM TYPE=FILE NAME=GPU_POWER_CONTROL_ENABLE >"]
        lines += ["GPU_PWR_CNTL_EN /sys/devices/gpu.0/power/control"]
        for cluster in range(self.kind.cores // 2):
            folder = f"{_CPU}/cpu{2 * cluster}/cpufreq"
            lines += ["", f"< PARAM TYPE=CLOCK NAME=CPU_DENVER_{cluster} >"]
            lines += [f"FREQ_TABLE {folder}/scaling_available_frequencies"]
            lines += [f"MAX_FREQ {folder}/scaling_max_freq", f"MIN_FREQ {folder}/scaling_min_freq"]
        lines += ["", "< PARAM TYPE=CLOCK NAME=GPU >"]
        for suffix, folder in (
            ("", f"{_GPU}/devfreq/17000000.gv11b"),
            ("_KNEXT", f"{_GPU}/devfreq_dev"),
        ):
            lines += [f"FREQ_TABLE{suffix} {folder}/available_frequencies"]
            lines += [f"MAX_FREQ{suffix} {folder}/max_freq", f"MIN_FREQ{suffix} {folder}/min_freq"]
        lines += ["", "< PARAM TYPE=CLOCK NAME=EMC >", f"MAX_FREQ {EMC}"]
        if self._has_oc_limit:
            lines += ["", "< PARAM TYPE=HWMON NAME=VDDIN_OC_LIMIT >", f"WARN {_OC} curr1_max"]
        for mode in self.kind.modes:
            lines += self._conf_of_mode(mode)
        lines += ["", "# mandatory", f"< PM_CONFIG DEFAULT={self.kind.default} >"]
        lines += ["< FAN_CONFIG DEFAULT=cool >"] if self.jetpack < 5 else []
        return "\n".join(lines) + "\n"

    def _conf_of_mode(self, mode: BoardMode) -> list[str]:
        lines = ["", f"< POWER_MODEL ID={mode.number} NAME={mode.name} >"]
        lines += [f"CPU_ONLINE CORE_{core} {int(core < mode.cores)}" for core in self._cores()]
        lines += ["GPU_POWER_CONTROL_ENABLE GPU_PWR_CNTL_EN on"]
        lines += [f"TPC_POWER_GATING TPC_PG_MASK {mode.tpc_mask}"]
        for cluster in range(mode.cores // 2):
            lines += [f"CPU_DENVER_{cluster} MIN_FREQ {self.kind.cpu_min_khz}"]
            lines += [f"CPU_DENVER_{cluster} MAX_FREQ {mode.cpu_khz}"]
        lines += [f"GPU MIN_FREQ {mode.gpu_min_hz}", f"GPU MAX_FREQ {mode.gpu_hz}"]
        lines += [f"EMC MAX_FREQ {mode.emc_hz}"]
        if mode.oc_warn_ma:
            lines += [f"VDDIN_OC_LIMIT WARN {mode.oc_warn_ma}"]
        return lines


def _step(steps: tuple[int, ...], wanted: int) -> int:
    """Return the frequency step that the kernel selects for a bound; -1 means no bound."""
    if wanted < 0:
        return steps[-1]
    return max((step for step in steps if step <= wanted), default=steps[0])
