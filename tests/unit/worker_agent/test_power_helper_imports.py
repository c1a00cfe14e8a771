"""The power helper needs nothing but the standard library, that of boards' Python 3.8 included."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.python_3_8 import python_3_8

ROOT = Path(__file__).parents[3]
NEWER = re.compile(r"slots=True|kw_only=True|strict=True|\.remove(prefix|suffix)\(")
"""What later versions than 3.8 brought, and its compiler does not notice."""
LIST_MODULES = """
import json, sys
before = set(sys.modules)
from worker_agent.power import (
    cpu_shares, helper, nvpmodel
)
print(json.dumps({name: getattr(sys.modules[name], "__file__", None) for name in sys.modules}))
"""


def modules_of_the_helper(python: str) -> dict[str, str | None]:
    """The files of all modules that a Python without any packages has after its import."""
    listed = subprocess.run(
        # -S: no site-packages. PYTHONPATH is ours alone.
        [python, "-S", "-s", "-B", "-c", LIST_MODULES],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, listed.stderr
    modules: dict[str, str | None] = json.loads(listed.stdout)
    return modules


def test_helper_imports_the_standard_library_only_and_is_valid_in_python_3_8() -> None:
    modules = modules_of_the_helper(sys.executable)
    ours = [Path(file) for file in modules.values() if file and file.startswith(f"{ROOT}/")]
    assert len(ours) > 10
    for path in ours:
        source = path.read_text("utf-8")
        ast.parse(source, str(path), feature_version=(3, 8))
        assert not NEWER.search(source), path


def test_helper_can_be_imported_by_python_3_8() -> None:
    assert "worker_agent.power.nvpmodel" in modules_of_the_helper(python_3_8())
