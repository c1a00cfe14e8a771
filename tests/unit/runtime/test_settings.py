"""Sources of settings, their precedence, and messages on invalid values."""

import enum
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct, field
from typer.testing import CliRunner

from synergai.cli.commands import settings_command
from synergai.errors import InvalidInput, InvalidSettings
from synergai.runtime.setting_types import POSITIONAL, Address, Cores, validate_address
from synergai.runtime.settings import Settings, options_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Delivery(Struct, frozen=True, kw_only=True):
    delivery: Annotated[Literal["bicycle", "lorry", "on foot"], "A choice."] = "bicycle"


class Shop(Settings, frozen=True, kw_only=True):
    """Settings with a field of every supported type."""

    env_prefix = "SHOP_"
    has_file = True

    listen: Annotated[Address, "Where [bold]customers[/bold] come."] = "127.0.0.1:80"
    upstream: Annotated[Address | None, "An address."] = None
    queue_bound: Annotated[int, "A number.", Meta(gt=0)] = 10
    patience: Annotated[float | None, "A number."] = None
    threads: Annotated[tuple[int, ...], Meta(min_length=1), "Numbers."] = (1, 2)
    labels: Annotated[dict[str, str], "Pairs."] = field(default_factory=dict)
    colour: Annotated[Colour, "An enum."] = Colour.RED
    infeasible: Annotated[Literal["defer", "reject"], "A choice."] = "defer"
    within: Delivery = Delivery()
    verbose: Annotated[bool, "A flag."] = False
    lights: Annotated[bool, "A flag."] = True
    models: Annotated[Path | None, "A path."] = None
    wait_s: Annotated[float, "A time.", Meta(ge=0)] = 1.0
    tax_share: Annotated[float, "A share.", Meta(le=0.5)] = 0.0
    discount: Annotated[float, "A number.", Meta(gt=0.0, le=1.0)] = 1.0
    stock: Annotated[dict[str, Annotated[int, Meta(ge=0)]], "Pairs."] = field(default_factory=dict)
    look_s: float = 5.0


class Order(Settings, frozen=True, kw_only=True):
    env_prefix = "ORDER_"

    engine: Annotated[str, POSITIONAL, "What to order."]
    queries: Annotated[int, "How many."] = 1
    given: frozenset[str] = frozenset()


class Pinned(Settings, frozen=True, kw_only=True):
    env_prefix = "PINNED_"

    cores: Annotated[Cores, "Cores."] = ()


def configured_cores(number: int) -> Callable[[str | int], int]:
    """Return an ``os.sysconf`` that reports this number of configured cores."""
    sysconf = os.sysconf
    return lambda name: number if name == "SC_NPROCESSORS_CONF" else sysconf(name)


def invoke(
    model: type[Settings], *arguments: str, env: dict[str, str] | None = None
) -> tuple[Settings, str]:
    """Run a command; return its settings and output."""
    seen: list[Settings] = []
    app = typer.Typer()
    run: Callable[[Settings], None] = seen.append
    app.command()(settings_command(model, run))
    result = CliRunner().invoke(app, list(arguments), env=env)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return (seen[0] if seen else Shop()), result.output


def test_options_before_a_subcommand_are_refused() -> None:
    app = typer.Typer()
    app.callback(invoke_without_command=True)(settings_command(Shop, lambda _shop: None))
    app.command("close")(lambda: None)
    assert CliRunner().invoke(app, ["close"]).exit_code == 0
    refused = CliRunner().invoke(app, ["--listen", "c:3", "close"])
    assert "options before 'close' have no effect" in str(refused.exception)


def test_command_line_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text('listen = "a:1"\nqueue-bound = 1\ninfeasible = "reject"\n')
    settings, _ = invoke(
        *(Shop, "--listen", "c:3", "--config", str(file)),
        env={"SHOP_QUEUE_BOUND": "2", "SHOP_LOOK_S": "0.5"},
    )
    assert settings == Shop(listen="c:3", queue_bound=2, infeasible="reject", look_s=0.5)


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text("queue_bound = 7")
    settings, _ = invoke(Shop, env={"SHOP_CONFIG": str(file)})
    assert settings == Shop(queue_bound=7)


@pytest.mark.parametrize("source", ["options", "environment", "file"])
def test_values_are_parsed_identically_from_every_source(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "threads": "1, 4",
        "labels": "site=roof,rack=2",
        "colour": "blue",
        "verbose": "true",
        "patience": "0.5",
        "models": "here",
    }
    options: dict[str, object] = {}
    file = None
    if source == "options":
        options.update(texts)
    elif source == "environment":
        for name, text in texts.items():
            monkeypatch.setenv(Shop.env_var(name), text)
    else:
        file = tmp_path / "shop.toml"
        file.write_text("".join(f'{name} = "{text}"\n' for name, text in texts.items()))
    settings = Shop.load(options, file)
    assert settings.threads == (1, 4)
    assert settings.labels == {"site": "roof", "rack": "2"}
    assert settings.colour is Colour.BLUE
    assert settings.verbose is True
    assert settings.patience == 0.5
    assert str(settings.models) == "here"


def test_invalid_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_LISTEN", "nowhere")
    with pytest.raises(InvalidSettings, match=r"^SHOP_LISTEN: 'nowhere' is not an address: write"):
        Shop.load()


def test_unknown_environment_variable_is_named_with_a_suggestion(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SHOP_QUEUE_BUND", "1")
    # What Kubernetes sets in every container for a service of the name shop.
    monkeypatch.setenv("SHOP_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("SHOP_SERVICE_PORT_GRPC", "8001")
    monkeypatch.setenv("SHOP_PORT", "tcp://10.0.0.1:8001")
    monkeypatch.setenv("SHOP_PORT_8001_TCP_ADDR", "10.0.0.1")
    for name in ("SHOP_CONFIG", "SHOP_COLOUR"):
        monkeypatch.setenv(name, "blue")
    Shop.load()
    assert caplog.messages == [
        "SHOP_QUEUE_BUND has no effect: there is no such setting; did you mean SHOP_QUEUE_BOUND?"
    ]


def test_variable_that_names_a_file_is_named_if_the_command_reads_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ORDER_CONFIG", "order.toml")
    Order.load({"engine": "e"})
    [message] = caplog.messages
    assert message.startswith("ORDER_CONFIG has no effect: there is no such setting")


def test_unknown_key_of_the_file_is_named_with_a_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text("queue_bund = 1")
    with pytest.raises(InvalidSettings, match=r"shop.toml: unknown setting 'queue_bund'; did"):
        Shop.load(file=file)


@pytest.mark.parametrize(
    ("content", "complaint"), [("a = ", "is not TOML"), (None, "cannot be read")]
)
def test_invalid_settings_file_is_named(
    content: str | None, complaint: str, tmp_path: Path
) -> None:
    file = tmp_path / "shop.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InvalidSettings, match=rf"shop\.toml .*{complaint}"):
        Shop.load(file=file)


def test_settings_are_not_read_from_devices() -> None:
    with pytest.raises(InvalidSettings, match="/dev/zero cannot be read: it is not a regular file"):
        Shop.load(file=Path("/dev/zero"))


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(InvalidSettings, match=r"--queue-bound.*; --infeasible: 'x' is not one of"):
        Shop.load({"queue_bound": "many", "infeasible": "x"})


def test_help_shows_options_defaults_and_environment_variables() -> None:
    _, output = invoke(Shop, "--help", env={"COLUMNS": "240"})
    for option in options_of(Shop).values():
        assert (f"--{option.flag} " in output) == (option.name != "look_s")
    assert "--listen by SHOP_LISTEN" in output
    assert "HOST:PORT" in output
    assert "defer|reject" in output
    assert "[one of: bicycle, lorry, on foot]" in output, "too long for the column of values"
    assert "default: 127.0.0.1:80" in output
    assert "[bold]customers[/bold]" in output, "a description is text, not markup"


def test_flag_that_is_on_has_an_option_that_turns_it_off() -> None:
    settings, _ = invoke(Shop, "--no-lights")
    assert settings == Shop(lights=False)


def test_positional_field_is_an_argument() -> None:
    settings, _ = invoke(Order, "digits", "--queries", "3")
    assert settings == Order(engine="digits", queries=3, given=frozenset({"engine", "queries"}))


def test_setting_without_default_is_required() -> None:
    with pytest.raises(InvalidSettings, match=r"^engine is missing$"):
        Order.load()


def test_settings_of_a_struct_within_are_given_by_their_own_names() -> None:
    settings, _ = invoke(Shop, "--delivery", "lorry")
    assert settings == Shop(within=Delivery(delivery="lorry"))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("wait_s", "1h30m", 5400.0),
        ("wait_s", "2.5", 2.5),
        ("tax_share", "20%", 0.2),
        ("queue_bound", " 7 ", 7),
        *(("verbose", text, True) for text in ("yes", "On", "1")),
        *(("verbose", text, False) for text in ("no", "off")),
    ],
)
def test_value_is_given_in_the_units_of_its_name_and_the_words_of_yaml(
    name: str, text: str, value: object
) -> None:
    assert getattr(Shop.load({name: text}), name) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("queue_bound", "0", "^--queue-bound: '0' is not an integer greater"),
        ("labels", "site", "--labels: 'site' is not KEY=VALUE"),
        ("tax_share", "60%", "'60%' is not a number of at most 0.5"),
        ("wait_s", "nan", "not a"),
        ("patience", "nan", "'nan' is not a number"),
        ("patience", "long", "'long' is not a number"),
        ("threads", "1,two", "'1,two' is not a list of one or more values, each an"),
        ("threads", ",", "',' is not a list of one or more values, each an integer$"),
        ("stock", "nail=no", "'nail=no' is not a list of KEY=VALUE, each value an integer of at"),
        ("patience", [], r"\[\] is not a number$"),
        ("discount", "2", "'2' is not a number greater than 0 and at most 1$"),
        ("verbose", "maybe", "'maybe' is not true or false"),
        ("colour", "green", "'green' is not one of red, blue"),
        ("nothing", "1", "unknown setting 'nothing'"),
    ],
)
def test_invalid_value_is_refused_with_what_is_valid(name: str, text: object, message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        Shop.load({name: text})


@pytest.mark.parametrize("text", ["127.0.0.1:8001", "localhost:0", "[::1]:65535", "[fe80::1%0]:1"])
def test_address_is_host_and_port(text: str) -> None:
    assert validate_address(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8001",
        ":8001",
        "host:",
        "host:65536",
        "::1:80",
        "[]:1",
        "a b:1",
        "h:-1",
        "h:٣",
        "h:" + "1" * 5000,
    ],
)
def test_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not an address"):
        validate_address(text)


def test_url_is_rejected_with_what_to_leave_out() -> None:
    with pytest.raises(InvalidInput, match=r"is not an address: leave out 'http://'$"):
        validate_address("http://127.0.0.1:8001")


@given(st.text())
def test_any_text_is_a_valid_address_or_rejected(text: str) -> None:
    try:
        assert validate_address(text) == text
    except InvalidInput:
        return
    assert text.rpartition(":")[2].isdecimal()


@pytest.mark.parametrize(
    ("named", "cores"),
    [("3", (3,)), ("0,2-3", (0, 2, 3)), ("2-3,3,1", (1, 2, 3)), ([0, "4-5"], (0, 4, 5)), ("", ())],
)
def test_cores_are_numbers_and_ranges_without_duplicates(
    monkeypatch: pytest.MonkeyPatch, named: object, cores: tuple[int, ...]
) -> None:
    monkeypatch.setattr("os.sysconf", configured_cores(6))
    assert Pinned.load({"cores": named}).cores == cores


def test_nonexistent_core_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", configured_cores(6))
    with pytest.raises(InvalidSettings, match="this machine has no core 7; the last one is 5"):
        Pinned.load({"cores": "4-7"})


@pytest.mark.parametrize("named", ["-1", "1-", "1-0", "two", "0-99999999", "²"])
def test_invalid_cores_are_rejected(named: str) -> None:
    with pytest.raises(InvalidSettings, match="--cores"):
        Pinned.load({"cores": named})
