"""Workers whose sample set of an engine differs from that of the others.

Such a worker is used all the same, since requests bring their own inputs. But query *i* of a job is
another sample there, and accuracies that were measured on different samples are not compared.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from gateway.fleet.descriptions import DIGEST_SHOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from synergai.domain import Engine, EngineName, WorkerId


class OtherSamples(NamedTuple):
    """A worker's sample set that is not the one of most workers.

    Attributes:
        digest: SHA-256 of its file, in hexadecimal digits.
        common: that of the most common one.
        example: a worker that has the most common one.
    """

    worker_id: WorkerId
    engine: EngineName
    digest: str
    common: str
    example: WorkerId

    @property
    def text(self) -> str:
        """The difference and its consequence, for people."""
        return (
            f"its samples or labels are not those of {self.example}: a samples.npz of SHA-256 "
            f"{self.digest[:DIGEST_SHOWN]}… instead of {self.common[:DIGEST_SHOWN]}…; accuracies "
            "measured on them are not compared, and jobs over samples mix both"
        )


def other_samples(engines: Mapping[WorkerId, Engine]) -> list[OtherSamples]:
    """Return the workers that have other samples of an engine than most.

    Of equally common ones, those of the worker that comes first count. Workers without a file of
    samples, or of an earlier version, are left out.

    Args:
        engines: the engine as each worker has it.
    """
    known = {worker: each for worker, each in engines.items() if each.samples_digest}
    counts = Counter(each.samples_digest for each in known.values())
    if len(counts) < 2:
        return []
    common = max(counts, key=counts.__getitem__)
    example = next(worker for worker, each in known.items() if each.samples_digest == common)
    return [
        OtherSamples(worker, each.name, each.samples_digest, common, example)
        for worker, each in known.items()
        if each.samples_digest != common
    ]
