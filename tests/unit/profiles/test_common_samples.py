"""The samples on which the accuracies of an engine's variants are compared."""

from msgspec.structs import replace

from synergai.domain import Configuration, EngineName, WorkerClass
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
from tests.cores import new_entry

NET = EngineName("net")
X86 = WorkerClass("x86")


def an_entry(variant: str, samples: str, measured_at: str = "") -> ProfileEntry:
    entry = new_entry(NET, X86, 100, Configuration(1, variant=variant))
    return replace(
        entry,
        accuracy=0.9,
        accuracy_samples=10_000,
        samples_digest=samples,
        measured_at=measured_at,
    )


def test_accuracy_on_other_samples_than_those_of_most_variants_does_not_count() -> None:
    most, other, earlier = an_entry("full", "a"), an_entry("int8", "b"), an_entry("p50", "")
    dictionary = ConfigurationDictionary([most, other, earlier, an_entry("tiny", "a")])
    samples = dictionary.samples(NET, X86)
    assert samples == "a"
    assert most.is_accurate_on(samples)
    assert not other.is_accurate_on(samples)
    assert earlier.is_accurate_on(samples)  # whose samples are not known


def test_of_equally_many_accuracies_the_latest_samples_count() -> None:
    old, new = an_entry("full", "a", "2026-01-01"), an_entry("int8", "b", "2026-02-01")
    dictionary = ConfigurationDictionary([old])
    assert dictionary.samples(NET, X86) == "a"
    dictionary.put(new)
    assert dictionary.samples(NET, X86) == "b"
    dictionary.remove(new)
    assert dictionary.samples(NET, X86) == "a"
    assert dictionary.samples(NET, WorkerClass("arm")) == ""
