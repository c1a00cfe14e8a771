"""Rules for engines that cannot be used."""

from pathlib import Path

import pytest

from synergai.models.directory import EngineDefinition
from synergai.names import EngineName
from worker_agent.describer import faulty_engine


@pytest.mark.parametrize(
    "fault", ["the folder has no model file", "engine 'empty': the folder has no model file"]
)
def test_fault_does_not_name_its_engine(fault: str) -> None:
    definition = EngineDefinition(name=EngineName("empty"), file=Path("empty"))
    assert faulty_engine(definition, fault).fault == "the folder has no model file"
