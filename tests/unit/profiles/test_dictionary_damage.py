"""Checksums of the dictionary's database, by which damage is noticed."""

import random
from contextlib import closing
from pathlib import Path

import pytest

from profiler.dictionary.files import add_to_dictionary, load_dictionary
from synergai.errors import InvalidInput
from synergai.profiles.service import ProfileService
from synergai.profiles.store import DictionaryDamaged, DictionaryStore
from synergai.runtime.database import connect
from tests.unit.profiles.test_storage import an_entry, content

ENTRIES = [an_entry(f"engine-{number:03}", 1.0 + number) for number in range(200)]
FLIPS = 200
PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a dictionary with many pages."""
    add_to_dictionary(tmp_path / "d.db", ENTRIES)
    return tmp_path / "d.db"


def flip(path: Path, offset: int, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= bits
    path.write_bytes(data)


def test_flipped_byte_is_refused_or_harmless(path: Path) -> None:
    rng = random.Random(1)
    whole, expected = path.read_bytes(), set(ENTRIES)
    refused = harmless = 0
    header = range(100)
    offsets = [*header, *(rng.randrange(len(whole)) for _ in range(FLIPS - len(header)))]
    for offset in offsets:
        flip(path, offset, rng.randrange(1, 256))
        damaged = path.read_bytes()
        try:
            read = content(load_dictionary(path))
        except InvalidInput as error:
            refused += str(path) in str(error)
        else:
            harmless += read == expected
        assert path.read_bytes() == damaged
        path.write_bytes(whole)
    assert refused + harmless == FLIPS
    assert refused > FLIPS * 0.9
    assert content(load_dictionary(path)) == expected


def test_damage_names_the_file_the_fault_and_the_ways_out(path: Path) -> None:
    flip(path, 3 * PAGE)
    for use in (load_dictionary, lambda path: add_to_dictionary(path, []), ProfileService):
        with pytest.raises(DictionaryDamaged, match="the checksum of a page is wrong") as raised:
            use(path)
        assert str(path) in str(raised.value)
        assert "import a copy" in str(raised.value)


def test_writer_waits_for_another_one_before_it_reads(path: Path) -> None:
    with closing(connect(path)) as other, DictionaryStore(path) as store:
        other.execute("BEGIN IMMEDIATE")
        waited = []

        def commit_other(attempt: int) -> bool:
            waited.append(attempt)
            other.execute("COMMIT")
            return True

        store._connection.set_busy_handler(commit_other)
        store.put_all([an_entry("waiting")])
        assert waited == [0]
    assert an_entry("waiting") in content(load_dictionary(path))
