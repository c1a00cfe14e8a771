from dataclasses import dataclass


@dataclass
class FakeClock:
    """Returns a time when it is called."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
