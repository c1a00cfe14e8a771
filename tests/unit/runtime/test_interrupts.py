"""Ctrl-C while a program is still being imported."""

import pytest

from synergai.cli.process import INTERRUPTED, exit_on_interrupt


def test_an_interrupt_ends_the_program_without_a_traceback() -> None:
    with pytest.raises(SystemExit) as ended, exit_on_interrupt():
        raise KeyboardInterrupt
    assert ended.value.code == INTERRUPTED
    assert ended.value.__suppress_context__
