"""``python -m gateway`` is ``synergai gateway``."""

import sys

from synergai.cli.main import main

if __name__ == "__main__":
    main(["gateway", *sys.argv[1:]])
