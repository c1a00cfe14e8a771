import hashlib
from pathlib import Path

from profiler.dictionary.origins import EngineOrigins
from synergai.domain import EngineName
from tests.constant_variants import write_family

FAMILY = EngineName("family")


def test_samples_are_hashed_once(tmp_path: Path) -> None:
    write_family(tmp_path / FAMILY, {"full": 0})
    samples = tmp_path / FAMILY / "samples.npz"
    origins = EngineOrigins(tmp_path)
    expected = hashlib.sha256(samples.read_bytes()).hexdigest()
    assert origins.samples_of(FAMILY) == expected
    samples.unlink()
    assert origins.samples_of(FAMILY) == expected


def test_engine_without_samples_has_no_digest_of_them(tmp_path: Path) -> None:
    write_family(tmp_path / FAMILY, {"full": 0})
    (tmp_path / FAMILY / "samples.npz").unlink()
    origins = EngineOrigins(tmp_path)
    assert not origins.samples_of(FAMILY)
    assert not origins.samples_of(EngineName("absent"))
