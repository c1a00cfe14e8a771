"""Command line behaviour that needs no gateway: help, errors and exit codes."""

import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias

import pytest
import typer

from synergai.__main__ import main as program
from synergai.cli import main as cli
from synergai.cli.own_data import OwnDataJob
from synergai.cli.process import INTERRUPTED
from synergai.errors import InvalidSettings, SynergaiError

FailingCommand: TypeAlias = Callable[[BaseException], None]


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run a command; return its exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as exited:
        cli.main(arguments)
    output = capsys.readouterr()
    return int(exited.value.code or 0), output.out, output.err


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> FailingCommand:
    """Install a command ``jobs`` that raises an error chosen by the test."""

    def install(error: BaseException) -> None:
        app = typer.Typer()

        @app.command()
        def fail() -> None:
            raise error

        monkeypatch.setattr("synergai.cli.jobs.app", app)

    return install


def test_help_lists_every_application(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["--help"], capsys)
    assert code == 0
    for name, application in cli.APPLICATIONS.items():
        assert name in out
        assert application.summary[:30] in out


def test_help_imports_only_fast_modules() -> None:
    # With only these, `synergai --help` took 0.14 s of CPU time; rich imports attr if it is there.
    quick = {"annotated_doc", "markdown_it", "mdurl", "pygments", "rich", "shellingham", "typer"}
    quick |= {"attr"}
    program = """
import sys
before = set(sys.modules)
from synergai.cli.main import main
try:
    main(["--help"])
finally:
    new = {name.partition(".")[0] for name in sys.modules.keys() - before}
    print(*new - sys.stdlib_module_names)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, check=True, text=True
    )
    assert set(done.stdout.splitlines()[-1].split()) <= quick | {"synergai"}


@pytest.mark.parametrize("name", ["", *sorted(cli.APPLICATIONS)])
def test_help_names_every_option_in_full_and_types_alike_on_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run([name, "--help"] if name else ["--help"], capsys)
    assert code == 0, err
    assert "Usage: synergai" in out
    assert not re.search(r"--[\w-]*…|<(bool|int|str|path|float|list)", out)
    assert re.search(r"--help +Show", out)
    assert not name or "install-completion" not in out


@pytest.mark.parametrize("name", sorted(cli.APPLICATIONS))
def test_shared_options_are_consistent_across_commands(name: str) -> None:
    module, _, attribute = cli.APPLICATIONS[name].entry_point.partition(":")
    root = typer.main.get_command(getattr(import_module(module), attribute))
    for command in (root, *getattr(root, "commands", {}).values()):
        options = {option: each for each in command.params for option in each.opts}
        assert "--force" not in options, "it is --replace"
        named_for_classes = {option for option in options if re.search("class", option)}
        assert named_for_classes <= {"--worker-class"}
        if "--json" in options:
            assert getattr(options["--json"], "is_flag", False), (
                "--json is a flag that prints to standard output"
            )


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["--version"], capsys)
    assert code == 0
    assert out.startswith("synergai ")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (SynergaiError("the lamp\nis out"), 1, "the lamp is out"),
        (SynergaiError("no file \x1b[2J\udcff\nhere"), 1, "no file ?[2J? here"),
        (InvalidSettings("--lamp: 'x' is no lamp"), 2, "--lamp: 'x' is no lamp"),
        (
            PermissionError(13, "Permission denied", "/somewhere"),
            1,
            "/somewhere: Permission denied",
        ),
    ],
    ids=["error", "control characters", "settings", "file"],
)
def test_error_prints_one_line_and_sets_the_exit_code(
    failing: FailingCommand,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    line: str,
) -> None:
    failing(error)
    assert run(["jobs"], capsys) == (code, "", f"error: {line}\n")


def test_interruption_exits_130(
    failing: FailingCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(KeyboardInterrupt())
    code, out, _ = run(["jobs"], capsys)
    assert (code, out) == (130, "")


def test_interruption_before_the_command_runs_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(typer.main, "get_command", interrupted)
    with pytest.raises(SystemExit) as exited:
        program(["jobs"])
    assert exited.value.code == INTERRUPTED


def test_argument_that_is_not_unicode_is_told(
    failing: FailingCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"))
    code, _, err = run(["jobs"], capsys)
    assert (code, err) == (1, "error: '\\udcff' is not valid Unicode text\n")


def test_internal_error_shows_no_traceback(
    failing: FailingCommand, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SYNERGAI_DEBUG", raising=False)
    failing(KeyError("secret"))
    code, _, err = run(["jobs"], capsys)
    assert code == 1
    assert err.startswith("error: internal error: KeyError; set SYNERGAI_DEBUG=1")
    assert "secret" not in err


def test_program_without_the_command_lines_libraries_names_the_extra() -> None:
    script = (
        "import sys; sys.modules['typer'] = None\n"
        "from synergai.__main__ import main; main(['jobs'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: the command line needs typer, which is not installed; run pip install "
        "'WHEEL[cli]', where WHEEL is the path of SynergAI's wheel, or install a role, such as "
        "'WHEEL[gateway]'\n"
    )


@pytest.mark.parametrize("when", ["importing", "running"])
def test_missing_dependency_names_the_extra_to_install(
    when: str,
    failing: FailingCommand,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = cli.Application("absent_library:app", "Absent.", "Use", "gateway")
    if when == "importing":
        monkeypatch.setitem(cli.APPLICATIONS, "jobs", missing)
    else:
        monkeypatch.setitem(
            cli.APPLICATIONS, "jobs", cli.Application("synergai.cli.jobs:app", "", "", "gateway")
        )
        failing(ModuleNotFoundError(name="absent_library"))
    code, _, err = run(["jobs"], capsys)
    assert code == 1
    assert err == (
        "error: 'synergai jobs' needs absent_library, which is not installed; "
        "pip install 'WHEEL[gateway]', where WHEEL is the path of SynergAI's wheel\n"
    )


@pytest.mark.parametrize("command", ["serve", "gateway", "agent"])
def test_server_without_its_libraries_names_the_extra_to_install(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synergai.cli.commands.find_spec", lambda _: None)
    code, _, err = run([command], capsys)
    assert code == 1
    assert f"pip install 'WHEEL[{command}]'" in err


def test_pattern_that_the_shell_expanded_names_all_its_files(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []

    async def begin(job: OwnDataJob, **_: object) -> None:
        listed.extend(job.patterns)

    monkeypatch.setattr(OwnDataJob, "run", begin)
    run(["submit", "m", "--inputs", "a.jpg", "b.jpg", "c.jpg"], capsys)
    assert listed == ["a.jpg", "b.jpg", "c.jpg"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "either --queries, or the inputs"),
        (("--queries", "1", "a.jpg"), "either --queries, or the inputs"),
        (("--queries", "1", "--max-failures", "0"), "--max-failures is for jobs over your own"),
        (("--queries", "1", "--only", "y"), "--only is for jobs over your own"),
    ],
)
def test_options_of_a_job_that_contradict_each_other_are_refused(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    code, out, err = run(["submit", "m", *options], capsys)
    assert (code, out) == (2, "")
    assert message in err


def test_closed_pipe_prints_no_error() -> None:
    command = f"{sys.executable} -m synergai --help | true"
    result = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert result.stderr == b""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["submit", "digits", "--queries", "0"], "queries must be from 1"),
        (["submit", "digits", "--queries", "1", "--qos", "-1"], "QoS time must be positive"),
        (["submit", "../etc", "--queries", "1"], "not a valid engine name"),
        (["jobs", "list", "--state", "lost"], "'lost' is not a job state"),
    ],
)
def test_invalid_arguments_are_rejected_without_a_call(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(arguments, capsys)
    assert (code, out) == (1, "")
    assert message in err
    assert err.count("\n") == 1


def test_path_that_is_not_valid_text_can_be_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = typer.Typer()
    app.command()(lambda: typer.echo("\udcff"))
    monkeypatch.setattr("synergai.cli.jobs.app", app)

    assert run(["jobs"], capsys)[:2] == (0, "\\udcff\n")
