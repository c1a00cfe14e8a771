"""Roles, and the grants that give them to callers."""

from __future__ import annotations

import enum
import re
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable


class Role(enum.StrEnum):
    """A set of permissions. No role includes another one."""

    INFER = "infer"
    """Run single requests."""
    SUBMIT = "submit"
    """Submit and stream jobs; follow and cancel jobs of the tenants in scope."""
    OBSERVE = "observe"
    """Read engines, workers, statistics, metrics and the dictionary; follow jobs."""
    OPERATE = "operate"
    """Load, unload and push engines, place them on workers, and cancel jobs."""
    ADMIN = "admin"
    """Change the configuration dictionary."""


JWT_PREFIX: Final = "jwt:"
"""Prefix of the names of clients with JSON web tokens."""
_WILDCARD: Final = re.compile(r"[*?[]")
ANY: Final = "*"
"""Pattern that every name matches."""
ANONYMOUS: Final = "anonymous"
"""Name of callers without credentials. Only a grant with exactly this name is for them: patterns
such as ``*`` mean clients that are known."""


class Grant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the access table: roles, and where they apply.

    ``group:NAME`` in `to` means all members of a group. `tenants` come in addition to the caller's
    own.
    """

    to: tuple[str, ...]
    roles: frozenset[Role]
    engines: tuple[str, ...] = (ANY,)
    tenants: tuple[str, ...] = ()

    def is_for(self, name: str, groups: frozenset[str]) -> bool:
        """Return whether the row is for a caller of this name and these groups."""
        if name == ANONYMOUS:
            return ANONYMOUS in self.to
        return any(
            pattern.removeprefix("group:") in groups
            if pattern.startswith("group:")
            else matches(pattern, name)
            for pattern in self.to
        )

    def to_subjects(self) -> tuple[str, ...]:
        """Return the patterns and groups that can be for a client with a JSON web token."""
        return tuple(
            to for to in self.to if to.startswith("group:") or _can_start_with(JWT_PREFIX, to)
        )


def _can_start_with(prefix: str, pattern: str) -> bool:
    """Return whether a name with this prefix may match; only the text before wildcards decides."""
    text = _WILDCARD.split(pattern, maxsplit=1)[0]
    return text.startswith(prefix) or (text != pattern and prefix.startswith(text))


def matches(pattern: str, name: str) -> bool:
    """Return whether `name` matches a shell-style pattern; case counts."""
    return pattern == ANY or _matcher(pattern)(name) is not None


def matches_any(patterns: tuple[str, ...], name: str) -> bool:
    """Return whether `name` matches one of the patterns."""
    return any(matches(pattern, name) for pattern in patterns)


@lru_cache(maxsize=4096)
def _matcher(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(translate(pattern)).match
