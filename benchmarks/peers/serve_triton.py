"""Run Triton with its Python backend from the nvidia-pytriton wheel."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from benchmarks.peers.onnx_model import OnnxModel, parse_arguments


def _tensors(kind: str, shapes: dict[str, list[int]]) -> str:
    tensors = (
        f'{{ name: "{name}" data_type: TYPE_FP32 dims: {shape} }}' for name, shape in shapes.items()
    )
    return f"{kind} [ {', '.join(tensors)} ]\n"


def _write_model(folder: Path, engine: str, file: str) -> None:
    model = OnnxModel(file)
    (folder / "1").mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("triton_model.py"), folder / "1" / "model.py")
    # The backend's interpreter ignores PYTHONPATH and searches the model's directory.
    (folder / "1" / "benchmarks").symlink_to(Path(__file__).resolve().parents[1])
    (folder / "config.pbtxt").write_text(
        f'name: "{engine}"\nbackend: "python"\nmax_batch_size: 0\n'
        + _tensors("input", model.inputs)
        + _tensors("output", model.outputs)
        + "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
        + f'parameters {{ key: "file" value: {{ string_value: "{file}" }} }}\n'
    )


def _bundle() -> Path:
    """Return the directory of the server in the wheel, without importing the package."""
    found = importlib.util.find_spec("pytriton")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("nvidia-pytriton is not installed")
    return Path(found.submodule_search_locations[0], "tritonserver")


def main() -> None:
    """Write the model repository and execute the server."""
    arguments = parse_arguments()
    repository = arguments.scratch / "repository"
    for engine, file in arguments.models.items():
        _write_model(repository / engine, engine, file)
    # The backend expects its stub in its own directory; the bundle has one per Python version.
    backends, bundle = arguments.scratch / "backends", _bundle()
    shutil.copytree(bundle / "backends", backends)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = bundle / "python_backend_stubs" / python / "triton_python_backend_stub"
    # The copied stub no longer finds the wheel's and Python's libraries by relative paths.
    shutil.copy(stub, backends / "python")
    libraries = [bundle.parents[1] / "nvidia_pytriton.libs", sysconfig.get_config_var("LIBDIR")]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, libraries))
    # The backend's interpreter searches the working directory first.
    os.chdir(sysconfig.get_path("purelib"))
    server = str(bundle / "bin" / "tritonserver")
    os.execv(
        server,
        [
            server,
            f"--model-repository={repository}",
            f"--backend-directory={backends}",
            "--grpc-address=127.0.0.1",
            f"--grpc-port={arguments.port}",
            "--allow-http=false",
            "--allow-metrics=false",
        ],
    )


if __name__ == "__main__":
    main()
