"""What boards with JetPack 5 have: its systemd, and versions of packages."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("synergai-*"))
JETPACK5_SYSTEMD = 245
DOCUMENTED = {"ProtectProc"}
"""Settings that systemd 245 ignores, with the consequence in docs/guide/boards.md."""

SINCE = {
    "Accept": 0, "After": 201, "AmbientCapabilities": 229, "CapabilityBoundingSet": 0,
    "CollectMode": 236, "Description": 201, "DevicePolicy": 208, "DirectoryMode": 0,
    "DynamicUser": 232, "Environment": 0, "EnvironmentFile": 0, "ExecStart": 0, "Group": 0,
    "IPAddressDeny": 235, "InaccessiblePaths": 231, "KillMode": 209, "LimitNOFILE": 0,
    "ListenStream": 0, "LockPersonality": 235, "MaxConnections": 0, "MemoryDenyWriteExecute": 231,
    "MemoryMax": 231, "NoNewPrivileges": 187, "NotifyAccess": 0, "OOMPolicy": 243,
    "PrivateDevices": 209, "PrivateNetwork": 0, "PrivateTmp": 0, "PrivateUsers": 232,
    "ProtectClock": 245, "ProtectControlGroups": 232, "ProtectHome": 214,
    "ProtectHostname": 242, "ProtectKernelLogs": 244, "ProtectKernelModules": 232,
    "ProtectKernelTunables": 232, "ProtectProc": 247, "ProtectSystem": 214,
    "ReadWritePaths": 231, "RemoveIPC": 232, "RemoveOnStop": 214, "Restart": 0,
    "RestartSec": 0, "RestrictAddressFamilies": 211, "RestrictNamespaces": 233,
    "RestrictRealtime": 231, "RestrictSUIDSGID": 242, "RuntimeMaxSec": 229, "SocketGroup": 214,
    "SocketMode": 0, "StandardError": 0, "StandardInput": 0, "StandardOutput": 0,
    "StateDirectory": 235, "StateDirectoryMode": 235, "SystemCallArchitectures": 209,
    "SystemCallErrorNumber": 209, "SystemCallFilter": 187, "TasksMax": 227,
    "TimeoutStartSec": 188, "TimeoutStopSec": 188, "Type": 0, "UMask": 0, "User": 0,
    "WantedBy": 0, "Wants": 0, "WatchdogSec": 0,
}  # fmt: skip
"""Versions of systemd that introduced the settings, by its manual pages; 0: before 187."""

PIN = re.compile(r"(?m)^([\w.-]+)==(\S+)$")
FOR_ONNX_RUNTIME_1_18 = {"numpy", "onnxruntime", "opencv-python-headless"}
FOR_GLIBC_2_31 = {"ai-edge-litert"}
X86_NAMES = {"tensorflow": "tensorflow-cpu"}
"""Packages that have another name on x86."""


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_settings_that_systemd_245_ignores_are_documented(unit: Path) -> None:
    settings = set(re.findall(r"(?m)^(\w+)=", unit.read_text("utf-8")))
    assert settings <= SINCE.keys()  # add new ones, with their version
    ignored = {each for each in settings if SINCE[each] > JETPACK5_SYSTEMD}
    assert ignored <= DOCUMENTED
    text = (ROOT / "docs" / "guide" / "boards.md").read_text("utf-8")
    assert all(f"`{each}=" in text for each in ignored)


def pins(path: Path) -> dict[str, str]:
    """The pinned versions of a file by normalised name."""
    found = PIN.findall(path.read_text("utf-8"))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def test_constraints_for_jetpack_5_are_the_tested_versions_where_they_can_be() -> None:
    tested, boards = pins(ROOT / "constraints.txt"), pins(ROOT / "deploy/constraints-jetpack5.txt")
    tested_name = {name: X86_NAMES.get(name, name) for name in boards}
    shared = {name for name in boards if tested_name[name] in tested}
    differing = {name for name in shared if boards[name] != tested[tested_name[name]]}
    assert differing == FOR_ONNX_RUNTIME_1_18 | FOR_GLIBC_2_31
    assert boards["onnxruntime"].startswith("1.18.")
    assert boards["numpy"].startswith("1.")
