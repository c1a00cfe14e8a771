"""Entry point of ``python -m synergai``."""

from synergai.cli.main import main

if __name__ == "__main__":
    main()
