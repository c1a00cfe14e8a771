"""The import rules of docs/architecture.md, asserted from the source text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
APPLICATIONS = {"gateway", "worker_agent", "profiler"}
ALLOWED = {
    "gateway": {"synergai"},
    "worker_agent": {"synergai"},
    "profiler": {
        "synergai",
        "worker_agent.cpu_affinity",
        "worker_agent.hosts.sync_client",
        "worker_agent.power",
    },
}
IMPURE = {"asyncio", "grpc", "time", "random", "datetime", "threading", "socket", "uvloop"}


def imports(path: Path) -> set[str]:
    """Every module that the file imports, on any path through it but for types only."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def sources(package: str) -> list[Path]:
    return sorted(p for p in (ROOT / package).rglob("*.py") if "_pb2" not in p.name)


@pytest.mark.parametrize("package", sorted(APPLICATIONS))
def test_application_imports_only_what_the_architecture_allows(package: str) -> None:
    for path in sources(package):
        for module in imports(path):
            top = module.partition(".")[0]
            if top in APPLICATIONS - {package}:
                allowed = any(
                    module == name or module.startswith(f"{name}.") for name in ALLOWED[package]
                )
                assert allowed, f"{path.relative_to(ROOT)} imports {module}"


def test_shared_package_imports_no_application() -> None:
    for path in sources("synergai"):
        tops = {module.partition(".")[0] for module in imports(path)}
        assert tops.isdisjoint(APPLICATIONS), path.relative_to(ROOT)


def test_scheduling_core_is_pure() -> None:
    for path in sources("synergai/scheduling"):
        modules = imports(path)
        assert {m.partition(".")[0] for m in modules}.isdisjoint(IMPURE), path.name
        ours = {m for m in modules if m.partition(".")[0] in {"gateway", "synergai"}}
        strangers = {
            m
            for m in ours
            if not m.startswith("synergai.scheduling")
            and m
            not in {
                "synergai.profiles.dictionary",
                "synergai.domain",
                "synergai.errors",
                "synergai.runtime.plugins",
                "synergai.values",
            }
        }
        assert not strangers, f"{path.name} imports {strangers}"
