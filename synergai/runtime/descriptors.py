"""Limit of open file descriptors."""

from __future__ import annotations

import resource
from typing import Final

MAX_DESCRIPTORS: Final = 65536
"""Limit that a serving process gives itself at most; more would only let a leak go unnoticed."""


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open file descriptors to the hard one, up to `MAX_DESCRIPTORS`.

    Linux's usual soft limit of 1024 protects programs that use ``select``. A serving process uses
    none, and its connections would exceed the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
