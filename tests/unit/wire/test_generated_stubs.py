"""The committed stubs match the protocol files."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent


def test_committed_stubs_are_what_the_proto_files_generate(tmp_path: Path) -> None:
    protos = sorted(str(p) for p in (ROOT / "proto").rglob("*.proto"))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{ROOT / 'proto'}",
            f"--python_out={tmp_path}",
            f"--grpc_python_out={tmp_path}",
            f"--plugin=protoc-gen-mypy={BIN / 'protoc-gen-mypy'}",
            f"--mypy_out=quiet:{tmp_path}",
            f"--plugin=protoc-gen-mypy_grpc={BIN / 'protoc-gen-mypy_grpc'}",
            f"--mypy_grpc_out=quiet:{tmp_path}",
            *protos,
        ],
        check=True,
    )
    generated = {p.relative_to(tmp_path): p.read_text() for p in tmp_path.rglob("*.py*")}
    assert generated
    for path, text in generated.items():
        assert (ROOT / path).read_text() == text, f"{path} is stale: run `make proto`"
    committed = {p.relative_to(ROOT) for p in (ROOT / "synergai").rglob("*_pb2*.py*")}
    committed = {path for path in committed if "__pycache__" not in path.parts}
    assert committed == set(generated)
