import shutil
import subprocess

import pytest


def python_3_8() -> str:
    """Return a Python 3.8; skip the test if there is none that works."""
    found = shutil.which("python3.8")
    # A version manager may have the program, but no version for it.
    if found is None or subprocess.run([found, "-V"], capture_output=True, check=False).returncode:
        pytest.skip("python3.8 is not installed; it is what JetPack 5 has")
    return found
