"""Builds the images of gateway, agents and tools with buildah.

    python -m deploy.images.build gateway agent-onnxruntime --base python:3.11-slim

The packages are the wheels of the constraints file for the image's machine. Nothing runs inside
of the build, so that images for arm64 need no emulation. The base must have Python 3.11, like the
Python that runs this program: it compiles the bytecode.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
EXTRAS: Final = {
    "gateway": "gateway,postgresql,s3,tracing",
    "agent-onnxruntime": "agent,onnxruntime",
    "agent-onnxruntime-gpu": "agent,onnxruntime-gpu",
    "agent-tensorflow": "agent,tensorflow",
    "agent-tflite": "agent,tflite",
    "tools": "cli,client,data",
}
"""Extras of the package, by image."""
MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
_GLIBC: Final = range(17, 37)
"""Wheels for these versions of glibc 2 run on Debian 12."""
_UNUSED: Final = ("bin", "include", "share", "**/tests")
"""What packages install that no image needs."""


def build(role: str, machine: str, base: str, extras: str = "") -> str:
    """Build an image and return its name.

    Args:
        extras: further extras of the package, such as ``images``, with commas.
    """
    name = f"localhost/synergai-{role}:{_version()}-{machine}"
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        site = context / "site"
        (context / "state").mkdir()
        _install(f"{EXTRAS[role]},{extras}".rstrip(","), machine, site)
        (context / "sbom.cdx.json").write_text(bill_of_materials(site))
        command = [
            *("buildah", "build", "--format", "oci", "--timestamp", "0", "--arch", machine),
            *("--build-arg", f"BASE={base}", "--build-arg", f"ROLE={role}"),
            *("--build-arg", f"VERSION={_version()}", "--tag", name),
            *("--file", str(Path(__file__).parent / "Containerfile"), folder),
        ]
        subprocess.run(command, check=True)
    return name


def _install(extras: str, machine: str, site: Path) -> None:
    """Install the packages of an image, and compile them."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    with tempfile.TemporaryDirectory() as wheels:
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, str(ROOT)], check=True)
        [wheel] = Path(wheels).glob("synergai-*.whl")
        platforms = [f"--platform=manylinux_2_{minor}_{MACHINES[machine]}" for minor in _GLIBC]
        subprocess.run(
            [
                *(*pip, "install", "--target", str(site), "--no-compile"),
                *("--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp"),
                *platforms,
                f"--platform=manylinux2014_{MACHINES[machine]}",
                *("--constraint", str(ROOT / "constraints.txt")),
                f"{wheel}[{extras}]",
            ],
            check=True,
        )
    for pattern in _UNUSED:
        for unused in list(site.glob(pattern)):
            shutil.rmtree(unused, ignore_errors=True)
    # They name the folder that the wheel was in.
    for name in ("direct_url.json", "RECORD"):
        next(site.glob(f"synergai-*.dist-info/{name}")).unlink()
    compiler = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*compiler, "-s", str(site), "-p", "/opt/synergai", str(site)], check=True)


def bill_of_materials(site: Path) -> str:
    """Return the installed packages as a bill of materials (CycloneDX 1.6)."""
    components = [_component(each) for each in distributions(path=[str(site)])]
    components.sort(key=lambda component: component["name"])
    document = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
    return json.dumps({**document, "components": components}, indent=2) + "\n"


def _component(package: Distribution) -> dict[str, str]:
    name = package.metadata["Name"]
    return {
        "type": "library",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{package.version}",
    }


def _version() -> str:
    project = (ROOT / "pyproject.toml").read_text()
    return project.split('\nversion = "', 1)[1].split('"', 1)[0]


def main() -> None:
    """Build the named images."""
    parser = argparse.ArgumentParser(prog="python -m deploy.images.build")
    parser.add_argument("roles", nargs="+", choices=EXTRAS)
    parser.add_argument("--machine", choices=MACHINES, default="amd64")
    parser.add_argument("--base", default="docker.io/library/python:3.11-slim")
    parser.add_argument(
        "--extras", default="", help="such as images, for agents that get photographs"
    )
    arguments = parser.parse_args()
    for role in arguments.roles:
        sys.stdout.write(build(role, arguments.machine, arguments.base, arguments.extras) + "\n")


if __name__ == "__main__":
    main()
