"""``python -m synergai`` is the ``synergai`` command."""

from synergai.cli.main import main

if __name__ == "__main__":
    main()
