"""``nvpmodel`` and ``jetson_clocks`` of an emulated board.

The program derives the board's root from its own location, and shares no code with the
controllers that it tests. Faults, selected by the first word in ``/emulation/fault`` (followed by
``once``: for the next call only):

``fails``           exits with an error without any effect
``warns``           takes full effect, but exits with an error
``hangs``           hangs without any effect
``hangs-midway``    hangs after half of the work
``no-effect``       reports success without any effect
``half-cores``      reports success with half of the cores offline that should be online
``killed-midway``   is killed after half of the work
``other=ID``        takes effect, then another program switches to mode ID
``needs-reboot``    prompts for a reboot, whatever the mode
``query-fails``     a query of the mode fails
``query-hangs``     a query of the mode hangs
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
BOARD: Any = json.loads((ROOT / "emulation/board.json").read_text())
BAD_INPUT = 234
FAILURE = 255


def _at(path: str) -> Path:
    return ROOT / path.lstrip("/")


def _read(path: str) -> str:
    return _at(path).read_text().strip()


def _write(path: str, value: object) -> None:
    _at(path).parent.mkdir(parents=True, exist_ok=True)
    _at(path).write_text(f"{value}\n")
    if path.endswith("/online") and path != f"{BOARD['cpu']}/online":
        cores = range(BOARD["cores"])
        online = [core for core in cores if _read(f"{BOARD['cpu']}/cpu{core}/online") == "1"]
        _at(f"{BOARD['cpu']}/online").write_text(",".join(map(str, online)) + "\n")


def _fault(*, of_query: bool) -> str:
    file = ROOT / "emulation/fault"
    words = file.read_text().split() if file.exists() else []
    if not words or (words[0] in ("query-fails", "query-hangs")) != of_query:
        return ""
    if "once" in words:
        file.unlink()
    return words[0]


def _current() -> int:
    return int(_read(BOARD["status"]).partition("pmode:")[2].split()[0])


def _print_lines(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _hang() -> NoReturn:
    while True:
        time.sleep(60)


def _query() -> int:
    fault = _fault(of_query=True)
    if fault == "query-hangs":
        _hang()
    _print_lines("NVPM WARN: fan mode is not set!")
    _print_lines("NVPM ERROR: Error opening /sys/kernel/nvpmodel_emc_cap/emc_iso_cap: 13")
    if fault == "query-fails":
        return FAILURE
    _print_lines(f"NV Power Mode: {BOARD['modes'][str(_current())]['name']}", str(_current()))
    return 0


def _prompt_for_reboot(number: int) -> int:
    _print_lines("NVPM WARN: Golden image context is already created")
    _print_lines(f"NVPM WARN: Reboot required for changing to this power mode: {number}")
    _print_lines("NVPM WARN: DO YOU WANT TO REBOOT NOW? enter YES/yes to confirm: ")
    answer = sys.stdin.readline().strip()
    if answer in ("YES", "yes"):
        (ROOT / "emulation/rebooted").touch()
        _print_lines("NVPM WARN: rebooting")
        return 0
    if not answer:
        _print_lines(
            "NVPM ERROR: bad input!", "NVPM ERROR: optMask is 1, no request for power mode"
        )
    return BAD_INPUT


def _apply(number: int, portion: float = 1.0, cores: float = 1.0) -> None:
    values = BOARD["modes"][str(number)]["values"]
    wanted = sum(value for path, value in values if path.endswith("/online"))
    for path, value in values[: round(len(values) * portion)]:
        core = path.removeprefix(f"{BOARD['cpu']}/cpu").partition("/")[0]
        kept = not path.endswith("/online") or int(core) < wanted * cores
        _write(path, value if kept else 0)
    if portion == 1.0:
        _at(BOARD["status"]).write_text(f"pmode:{number:04d} fmode:cool\n")


def _switch(number: int) -> int:
    if str(number) not in BOARD["modes"]:
        _print_lines(f"NVPM ERROR: invalid power mode id {number}")
        return FAILURE
    fault = _fault(of_query=False)
    differs = BOARD["modes"][str(number)]["tpc"] != int(_read(BOARD["tpc"]))
    if fault == "needs-reboot" or (differs and (ROOT / "emulation/golden").exists()):
        return _prompt_for_reboot(number)
    if fault == "fails":
        _print_lines("NVPM ERROR: failed to write PARAM CPU_ONLINE: ARG CORE_3")
        return FAILURE
    if fault == "hangs":
        _hang()
    elif fault in ("hangs-midway", "killed-midway"):
        _apply(number, portion=0.5)
        if fault == "hangs-midway":
            _hang()
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "half-cores":
        _apply(number, cores=0.5)
    elif fault != "no-effect":
        _apply(number)
    if fault == "warns":
        _print_lines("NVPM ERROR: cannot set fan mode")
        return FAILURE
    return 0


def _clocks(arguments: list[str]) -> int:
    folders = [f"{BOARD['cpu']}/cpu{core}/cpufreq/scaling_" for core in range(BOARD["cores"])]
    folders.append(f"{BOARD['gpu']}/")
    if arguments[:1] == ["--store"]:
        if Path(arguments[1]).exists():
            _print_lines("File already exists. Can I overwrite it? Y/N: ")
            return 0 if sys.stdin.readline().strip() == "Y" else 1
        lowest = {folder: _read(f"{folder}min_freq") for folder in folders}
        Path(arguments[1]).parent.mkdir(parents=True, exist_ok=True)
        Path(arguments[1]).write_text(json.dumps(lowest))
    elif arguments[:1] == ["--restore"]:
        for folder, lowest in json.loads(Path(arguments[1]).read_text()).items():
            _write(f"{folder}min_freq", lowest)
    else:
        for folder in folders:
            _write(f"{folder}min_freq", _read(f"{folder}max_freq"))
    return 0


def _main() -> int:
    name, arguments = Path(sys.argv[0]).name, sys.argv[1:]
    with (ROOT / "emulation/calls").open("a") as log:
        log.write(" ".join([name, *arguments]) + "\n")
    if name == "jetson_clocks":
        return _clocks(arguments)
    if arguments == ["-q"]:
        return _query()
    if len(arguments) == 2 and arguments[0] == "-m" and arguments[1].isdecimal():
        return _switch(int(arguments[1]))
    _print_lines("NVPM ERROR: optMask is 0, no request for power mode")
    return FAILURE


if __name__ == "__main__":
    sys.exit(_main())
