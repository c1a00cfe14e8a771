"""Variants of an engine are described with it, and fail on their own."""

from pathlib import Path

import pytest

from synergai.domain import TensorSpec
from synergai.errors import EngineUnusable, SynergaiError, Unavailable
from synergai.models.descriptions import EngineDescription
from synergai.models.directory import EngineDefinition
from synergai.wire.converters import engine_from_proto, engine_to_proto
from tests.inventories import described
from tests.unit.worker_agent.inventory.conftest import ONE, Loads, Retrying, put
from worker_agent.hosts.loads import LoadCrashed, LoadHung
from worker_agent.inventory import Inventory


def put_family(models: Path, **contents: bytes) -> None:
    for name, content in contents.items():
        put(models, "one", content)
        (models / "one/model.onnx").rename(models / "one" / f"{name}.onnx")
    tables = (
        f'[[variants]]\nname = "{name}"\nfile = "{name}.onnx"\naccuracy = 0.5\n'
        for name in contents
    )
    (models / "one/engine.toml").write_text("".join(tables))


class Variants(Loads):
    """Replaces the loading of variants; those in `failing` fail, those in `widths` differ."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: dict[str, SynergaiError] = {}
        self.widths: dict[str, int] = {}
        self.variants: list[str] = []

    async def __call__(self, definition: EngineDefinition) -> EngineDescription:
        self.variants.append(definition.variant)
        if error := self.failing.get(definition.variant):
            raise error
        x = (TensorSpec("x", "FP32", (1,)),)
        y = (TensorSpec("y", "FP32", (self.widths.get(definition.variant, 10),)),)
        return EngineDescription(x, y, samples=1)


@pytest.fixture
def family(models: Path, tmp_path: Path) -> tuple[Inventory, Variants]:
    put_family(models, full=b"1", int8=b"22", p25=b"333")
    loads = Variants()
    return Inventory(models, tmp_path / "engines.json", loads, parallel=1), loads


async def test_variants_of_an_engine_are_described_with_it(
    family: tuple[Inventory, Variants],
) -> None:
    inventory, loads = family
    engine = (await described(inventory))[ONE]
    assert [each.name for each in engine.variants] == ["full", "int8", "p25"]
    assert [each.accuracy for each in engine.variants] == [0.5] * 3
    assert engine.digest == engine.variants[0].digest != engine.variants[1].digest
    assert loads.variants == ["full", "int8", "p25"]
    assert engine_from_proto(engine_to_proto(engine)) == engine


@pytest.mark.parametrize(
    "error",
    [EngineUnusable("no"), LoadCrashed("crashed"), LoadHung("hung")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("failing", ["full", "int8"])
async def test_variant_that_cannot_be_loaded_costs_only_itself(
    family: tuple[Inventory, Variants], error: SynergaiError, failing: str
) -> None:
    inventory, loads = family
    loads.failing[failing] = error
    engine = (await described(inventory))[ONE]
    assert not engine.fault
    assert [each.name for each in engine.variants] == [
        name for name in ("full", "int8", "p25") if name != failing
    ]
    # Requests to load the engine must not wait for a variant that hangs again.
    assert not inventory.remembers_fault(ONE)


async def test_variant_whose_load_was_ended_from_outside_is_loaded_again(
    models: Path, family: tuple[Inventory, Variants]
) -> None:
    _, loads = family
    retrying = Retrying(models, loads)
    loads.failing = {"int8": Unavailable("died by signal 9")}
    assert not (await described(retrying.inventory))[ONE].fault
    loads.failing.clear()
    loads.variants.clear()
    async with retrying.running():
        for _ in range(2):
            await retrying.run_due(10)
    assert loads.variants == ["int8"]


async def test_engine_is_faulty_if_all_variants_are(family: tuple[Inventory, Variants]) -> None:
    inventory, loads = family
    loads.failing = {name: LoadHung(f"{name} hung") for name in ("full", "int8", "p25")}
    assert (await described(inventory))[ONE].fault == "full hung"
    assert inventory.remembers_fault(ONE)


async def test_variant_with_other_tensors_is_not_used(
    family: tuple[Inventory, Variants], caplog: pytest.LogCaptureFixture
) -> None:
    inventory, loads = family
    loads.widths["int8"] = 11
    engine = (await described(inventory))[ONE]
    assert [each.name for each in engine.variants] == ["full", "p25"]
    assert "variant int8 of engine one is not used: its outputs are y FP32 [11]" in caplog.text
