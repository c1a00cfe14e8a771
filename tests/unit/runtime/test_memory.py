"""Memory of processes."""

import os

from synergai.runtime.resources import forget_peak_rss, peak_rss_bytes, rss_bytes


def test_peak_begins_anew_once_it_is_forgotten() -> None:
    large = b"x" * (256 << 20)
    del large
    assert forget_peak_rss(os.getpid())
    assert peak_rss_bytes(os.getpid()) < rss_bytes(os.getpid()) + (64 << 20)


def test_peak_of_a_process_that_has_exited_cannot_be_forgotten() -> None:
    assert not forget_peak_rss(2**30)
