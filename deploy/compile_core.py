"""Compile the scheduling core in place: ``python -m deploy.compile_core``.

mypyc makes extension modules of typed Python, which Python imports instead of the sources next to
them. They are to be removed before the sources are changed; see ``make pure``.
"""

from __future__ import annotations

from typing import Final

from mypyc.build import mypycify
from setuptools import setup

_MODULES: Final = (
    "core",
    "policies/malleable/policy",
    "queue/job_queue",
    "rules/active_jobs",
    "rules/decisions",
    "rules/leases",
    "rules/wait_queue",
    "state/estimator",
    "state/fleet",
    "state/ranges",
)
"""What takes most of the core's time. mypyc needs the types of data classes at run time, so modules
of records stay as they are."""


def main() -> None:
    """Compile the modules."""
    sources = [f"synergai/scheduling/{module}.py" for module in _MODULES]
    setup(
        name="synergai-core",
        packages=[],
        py_modules=[],
        ext_modules=mypycify(["--ignore-missing-imports", *sources], opt_level="2"),
        script_args=["build_ext", "--inplace", "--force"],
    )


if __name__ == "__main__":
    main()
