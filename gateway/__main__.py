"""``python -m gateway`` is ``synergai gateway``."""

import sys

from synergai.__main__ import main

if __name__ == "__main__":
    main(["gateway", *sys.argv[1:]])
