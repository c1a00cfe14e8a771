"""Energy of NVIDIA's GPUs, read with the NVIDIA Management Library of their driver."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any, Final

from synergai.errors import NotSupported

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from worker_agent.power.files import MachineFiles

_DEVICE: Final = "/dev/nvidiactl"
_LIBRARY: Final = "libnvidia-ml.so.1"
_SUCCESS: Final = 0
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
"""Variable with the numbers or UUIDs of the GPUs that CUDA uses, which counts only these."""


class NvmlSensor:
    """The GPUs that are used: their energy counters, or their sampled power where they have none.

    GPUs before the Volta generation have no counter.
    """

    def __init__(
        self,
        files: MachineFiles,
        gpus: Collection[int] | None = None,
        load: Callable[[str], Any] = ctypes.CDLL,
    ) -> None:
        if not files.exists(_DEVICE):
            raise NotSupported("there is no NVIDIA GPU")
        try:
            self._library = load(_LIBRARY)
        except OSError as error:
            raise NotSupported(f"cannot load {_LIBRARY}: {error}") from error
        try:
            self._call("nvmlInit_v2")
            self._devices = [
                device
                for number, device in enumerate(self._visible())
                if gpus is None or number in gpus
            ]
            if not self._devices:
                raise NotSupported("no NVIDIA GPU is used")
            self._joules = [0.0] * len(self._devices)
            self._last: list[tuple[float, float] | None] = [None] * len(self._devices)
            self._counts = [self._has_counter(device) for device in self._devices]
            for number in range(len(self._devices)):
                self._read(number)
        except (OSError, AttributeError) as error:
            raise NotSupported(f"cannot read the power of NVIDIA GPUs: {error}") from error
        count = len(self._devices)
        self.source = f"NVML ({count} GPU{'s' * (count > 1)})"

    def joules(self, now: float) -> float:
        """See `EnergySensor.joules`; sampled power is integrated (trapezoidal rule)."""
        for number, counts in enumerate(self._counts):
            value, last = self._read(number), self._last[number]
            if last is not None:
                then, before = last
                self._joules[number] += (
                    value - before if counts else (now - then) * (value + before) / 2
                )
            self._last[number] = (now, value)
        return sum(self._joules)

    def _visible(self) -> list[ctypes.c_void_p]:
        """Return the GPUs that CUDA sees, in its order."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        names = os.environ.get(VISIBLE, ",".join(map(str, range(count.value))))
        devices = []
        for name in map(str.strip, names.split(",")):
            device = ctypes.c_void_p()
            if name.isdecimal() and int(name) < count.value:
                self._call("nvmlDeviceGetHandleByIndex_v2", int(name), ctypes.byref(device))
            elif name.startswith("GPU-"):
                self._call("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(device))
            else:
                break  # as CUDA does
            devices.append(device)
        return devices

    def _has_counter(self, device: ctypes.c_void_p) -> bool:
        try:
            self._energy(device)
        except (OSError, AttributeError):
            return False
        return True

    def _read(self, number: int) -> float:
        """Return the energy so far in joules, or the present power in watts."""
        device = self._devices[number]
        if self._counts[number]:
            return self._energy(device)
        milliwatts = ctypes.c_uint()
        self._call("nvmlDeviceGetPowerUsage", device, ctypes.byref(milliwatts))
        return milliwatts.value / 1000

    def _energy(self, device: ctypes.c_void_p) -> float:
        millijoules = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", device, ctypes.byref(millijoules))
        return millijoules.value / 1000

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != _SUCCESS:
            raise OSError(f"{name} failed with code {code}")
