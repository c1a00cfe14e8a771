"""A base for images, of Debian's Python."""

import subprocess
from pathlib import Path
from typing import Final

_PACKAGES: Final = "python3.11-minimal,libpython3.11-stdlib,libstdc++6,ca-certificates,tzdata"


def output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def build_base(folder: Path, machine: str) -> str:
    """Build a base of Debian's Python, without a shell, and return its name."""
    root = folder / machine
    root.mkdir()
    command = ["mmdebstrap", "--quiet", "--variant=extract", f"--architectures={machine}"]
    command += [f"--include={_PACKAGES}", "--dpkgopt=path-exclude=/usr/share/doc/*"]
    subprocess.run([*command, "bookworm", str(root / "root.tar")], check=True)
    (root / "Containerfile").write_text("FROM scratch\nADD root.tar /\n")
    name = f"localhost/synergai-test-base:{machine}"
    options = ["--format", "oci", "--timestamp", "0", "--arch", machine]
    output("buildah", "build", "--quiet", *options, "--tag", name, str(root))
    return name
