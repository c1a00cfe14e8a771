"""The ``synergai`` command line; one module per group of commands."""
