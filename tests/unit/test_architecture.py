"""The import rules of docs/maintainers/architecture.md, asserted from the source text."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = {"gateway", "worker_agent", "profiler"}
TOOLS = {"demo", "examples", "benchmarks", "tests"}
"""Not in the wheel; they may import everything, and nothing imports them."""

BORROWED = {
    "gateway": set[str](),
    "worker_agent": set[str](),
    "profiler": {
        "worker_agent.cpu_affinity",
        "worker_agent.hosts.launch",
        "worker_agent.ipc",
        "worker_agent.power",
        "worker_agent.providers",
    },
}
"""What a program may import of another one."""

SERVE = {"worker_agent.app", "worker_agent.agent_settings"}
"""What ``gateway.serve``, a gateway with a worker of its own, may import besides."""

ORDER = {
    "synergai": (
        "errors",
        "v1",
        "oip",
        "names",
        "domain",
        "jobs",
        "runtime",
        "profiles",
        "core",
        "wire",
        "fleet_page",
        "models",
        "data",
        "client",
        "cli",
        "__init__",
        "__main__",
    ),
    "gateway": (
        "gateway_settings",
        "fleet",
        "monitoring",
        "entry",
        "journal",
        "dispatch",
        "jobs",
        "hub",
        "deployment",
        "calls",
        "grpc_server",
        "standby",
        "backup",
        "components",
        "app",
        "server",
        "serve",
        "cli",
    ),
    "worker_agent": (
        "power",
        "cpu_affinity",
        "providers",
        "agent_settings",
        "peers",
        "exchange",
        "ipc",
        "backends",
        "host",
        "hosts",
        "describer",
        "inventory",
        "placements",
        "work_item",
        "runner",
        "hub_client",
        "machine",
        "worker",
        "served_engines",
        "app",
        "cli",
    ),
    "profiler": (
        "report_pipe",
        "onnx_file",
        "model_description",
        "installation",
        "cutting",
        "zoo",
        "loadgen",
        "dictionary",
        "measuring",
        "engines",
        "planning",
        "simulator",
        "reports",
    ),
}
"""The parts of each package; a part may import the parts before it."""

APART = {
    "core": {"wire"},
    "client": {"models"},
    "data": {"models", "core"},
}
"""Parts of the library that stand side by side, whatever their order."""

OFFLINE_APART = {
    "zoo": {"synergai.client", "synergai.core.scheduling"},
    "loadgen": {"synergai.core.scheduling"},
    "simulator": {"synergai.models", "synergai.wire"},
    "reports": {"worker_agent"},
}
"""What the parts of the offline half do without."""

PURE = {"errors", "names", "domain", "jobs", "profiles", "core"}
PURE_RUNTIME = ("synergai.runtime.plugins", "synergai.runtime.text")
IMPURE = {"asyncio", "datetime", "grpc", "random", "socket", "threading", "time", "uvloop"}


@cache
def imports(path: Path) -> set[str]:
    """Every module that the file imports, those for type checking included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@cache
def sources(package: str) -> list[Path]:
    return sorted(p for p in (ROOT / package).rglob("*.py") if "_pb2" not in p.name)


def part_of(path: Path) -> str:
    """The file's place in its package: the name of a folder or of a module."""
    return path.relative_to(ROOT).with_suffix("").parts[1]


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_program_imports_nothing_of_another_but_what_it_borrows(program: str) -> None:
    for path in sources(program):
        allowed = BORROWED[program] | (SERVE if path.parent.name == "serve" else set())
        for module in imports(path):
            if module.partition(".")[0] in PROGRAMS - {program}:
                borrowed = any(
                    f"{module}.".startswith(f"{name}.") or f"{name}.".startswith(f"{module}.")
                    for name in allowed
                )
                assert borrowed, f"{path.relative_to(ROOT)} imports {module}"


def test_library_imports_no_program() -> None:
    for path in sources("synergai"):
        tops = {module.partition(".")[0] for module in imports(path)}
        assert tops.isdisjoint(PROGRAMS | TOOLS), path.relative_to(ROOT)


@pytest.mark.parametrize("package", sorted(ORDER))
def test_part_imports_only_parts_before_it(package: str) -> None:
    order = {part: place for place, part in enumerate(ORDER[package])}
    for path in sources(package):
        part = part_of(path)
        if path.parent == ROOT / package and part == "__init__" and part not in order:
            continue
        for module in imports(path):
            top, _, rest = module.partition(".")
            other = rest.partition(".")[0]
            if top == package and other in order:
                assert order[other] <= order[part], f"{path.relative_to(ROOT)} imports {module}"


@pytest.mark.parametrize("package", sorted(ORDER))
def test_order_names_every_part_of_a_package(package: str) -> None:
    parts = {part_of(path) for path in sources(package)}
    if package != "synergai":
        parts.discard("__init__")
    assert parts <= set(ORDER[package])


@pytest.mark.parametrize("package", sorted(ORDER))
def test_document_lists_every_part_in_the_same_order(package: str) -> None:
    text = (ROOT / "docs" / "maintainers" / "architecture.md").read_text("utf-8")
    [section] = re.findall(rf"^### `{package}`$(.*?)^##", text, re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)(?:/|\.py)`", row)]
    assert listed == [part for part in ORDER[package] if not part.startswith("__")]


@pytest.mark.parametrize("part", sorted(APART))
def test_parts_that_stand_side_by_side_do_not_import_each_other(part: str) -> None:
    for path in sources(f"synergai/{part}"):
        others = {m.split(".")[1] for m in imports(path) if m.startswith("synergai.")}
        assert others.isdisjoint(APART[part]), path.relative_to(ROOT)


@pytest.mark.parametrize("part", sorted(OFFLINE_APART))
def test_part_of_the_offline_half_does_without_what_it_names(part: str) -> None:
    for path in sources(f"profiler/{part}"):
        strangers = {m for m in imports(path) if m.startswith(tuple(OFFLINE_APART[part]))}
        assert not strangers, f"{path.relative_to(ROOT)} imports {strangers}"


@pytest.mark.parametrize(
    "package", ["synergai/core/scheduling", "profiler/simulator", "profiler/reports"]
)
def test_modules_have_no_import_cycle(package: str) -> None:
    paths = {
        ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p
        for p in sources(package)
    }
    graph = {module: imports(path) & (paths.keys() - {module}) for module, path in paths.items()}
    TopologicalSorter(graph).prepare()


def test_core_is_pure() -> None:
    for path in sources("synergai/core"):
        modules = imports(path)
        assert {m.partition(".")[0] for m in modules}.isdisjoint(IMPURE), path.name
        parts = {m.split(".")[1] for m in modules if m.startswith("synergai.")}
        shared = {m for m in modules if m.startswith("synergai.runtime.")}
        assert parts <= PURE | {"runtime"}, path.name
        assert all(m.startswith(PURE_RUNTIME) for m in shared), path.name


def test_search_is_pure() -> None:
    for path in sources("profiler/measuring/search"):
        modules = imports(path)
        assert {m.partition(".")[0] for m in modules}.isdisjoint(IMPURE), path.name
        mine = {m for m in modules if m.partition(".")[0] in PROGRAMS | {"synergai"}}
        allowed = (
            "profiler.measuring.search",
            "synergai.domain",
            "synergai.errors",
            "synergai.runtime.plugins",
        )
        assert all(m.startswith(allowed) for m in mine), path.name


@pytest.mark.parametrize("module", ["deployment", "optimal", "options", "plan", "tables"])
def test_planner_of_the_fastest_routes_is_pure(module: str) -> None:
    modules = imports(ROOT / "profiler" / "planning" / f"{module}.py")
    assert {m.partition(".")[0] for m in modules}.isdisjoint(IMPURE)
    parts = {m.split(".")[1] for m in modules if m.startswith("synergai.")}
    assert parts <= PURE | {"runtime"}


def test_agent_process_imports_no_backend_and_nothing_of_an_engine_host() -> None:
    inside = ("worker_agent.backends", "worker_agent.host.")
    for path in sources("worker_agent"):
        if part_of(path) not in {"backends", "host"}:
            strangers = {m for m in imports(path) if m.startswith(inside)}
            assert not strangers, f"{path.relative_to(ROOT)} imports {strangers}"


def test_no_task_is_started_on_a_loop_instead_of_by_its_owner() -> None:
    for path in (path for package in ORDER for path in sources(package)):
        assert not re.search(r"loop(\(\))?\.create_task\(", path.read_text()), path


def test_no_module_imports_itself_through_others() -> None:
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for package in ORDER
        for path in sources(package)
    }
    graph = {
        name: {module for module in imports(path) if module in modules} - {name}
        for name, path in modules.items()
    }
    # Raises CycleError, which names the cycle.
    TopologicalSorter(graph).prepare()


def test_only_a_running_gateway_imports_the_http_server() -> None:
    program = (
        "import sys; import gateway.cli, gateway.gateway_settings, synergai, worker_agent.app\n"
        "heavy = {'uvicorn', 'starlette', 'anyio', 'httptools', 'gateway.calls.http'}\n"
        "print(*sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == []


def test_serving_and_clients_load_nothing_of_the_offline_half() -> None:
    program = (
        "import sys; import synergai.cli.main, synergai.cli.process, gateway.serve.server\n"
        "import gateway.server, worker_agent.app, synergai\n"
        "for name in dir(synergai): getattr(synergai, name)\n"
        "print(*sorted(m for m in sys.modules if m.startswith('profiler')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("worker_agent.app", {"click", "importlib.metadata", "numpy"}),
        ("worker_agent.host.loop", {"asyncio", "grpc", "ssl"}),  # one process for each engine
        ("gateway.server", {"jwt", "cryptography"}),
        ("gateway.serve.server", {"jwt", "cryptography"}),
        ("synergai.cli.process", {"click", "msgspec"}),
    ],
)
def test_serving_process_imports_no_command_line(module: str, absent: set[str]) -> None:
    heavy = {"typer", "rich", "pydantic"} | absent  # uvicorn imports click
    program = f"import sys; import {module}\nprint(*sorted({heavy!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == []
