"""Modules of settings stay cheap to import, so that ``--help`` is fast."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from importlib import import_module

import_module(sys.argv[1])
heavy = {"google.protobuf", "grpc", "numpy", "psutil"} & sys.modules.keys()
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    "module",
    [
        "gateway.gateway_settings",
        "worker_agent.agent_settings",
        "profiler.measuring.profiler_settings",
    ],
)
def test_settings_import_neither_grpc_nor_numpy(module: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, module], check=True, timeout=60)
