"""The README's first commands in a new Debian without the checkout, whose Python is 3.13."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.wheel import CHECKOUT, build_wheel

RELEASE: Final = "trixie"
ENVIRONMENT: Final = "PATH=/way/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_BYTES: Final = 350_000_000
MAX_S: Final = 180.0
"""From the start of the installation to the first answer, the download included."""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mmdebstrap") is None, reason="needs root and mmdebstrap"
)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "root"
    packages = "--include=python3,python3-venv,ca-certificates"
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", packages, RELEASE, str(path)], check=True
    )
    build_wheel(path / "dist")
    # Those that this machine trusts, and how it finds the index.
    for file in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):
        shutil.copyfile(Path("/") / file, path / file)
    mounted = [path / name for name in ("proc", "dev", "sys")]
    for each in mounted:
        subprocess.run(["mount", "--bind", f"/{each.name}", str(each)], check=True)
    try:
        yield path
    finally:
        for each in mounted:
            subprocess.run(["umount", "--lazy", str(each)], check=True)


def test_the_readmes_first_commands_answer_in_a_new_debian(root: Path) -> None:
    text = (CHECKOUT / "README.md").read_text()
    [block] = re.findall(r"(?s)```\n(pip install .*?)```", text)
    install, build, serve, submit = (line.partition(" #")[0] for line in block.splitlines())
    inside = ["chroot", str(root), "/usr/bin/env", "-i", ENVIRONMENT, "HOME=/root"]
    # The commands use the default ports, in a network of their own.
    alone = ["unshare", "--net", "bash", "-c", 'ip link set lo up && exec "$@"', "bash"]

    began = time.monotonic()
    subprocess.run([*inside, "python3", "-m", "venv", "/way"], check=True)
    subprocess.run([*inside, "bash", "-c", install], check=True)
    serving = f"{build} && {{ {serve} & }} && until {submit}; do sleep 0.5; done; kill %1; wait %1"
    done = subprocess.run(
        [*alone, *inside, "bash", "-mc", serving],
        stdout=subprocess.PIPE,
        text=True,
        timeout=MAX_S,
        check=True,
    )
    took = time.monotonic() - began
    used = sum(each.lstat().st_size for each in (root / "way").rglob("*"))
    print(f"answered after {took:.1f} s, {used / 1e6:.0f} MB")
    assert "500 of 500" in done.stdout
    assert took <= MAX_S
    assert used <= MAX_BYTES
