"""What holds for every test."""

from __future__ import annotations

import signal

# Whoever runs the tests in the background of a script has SIGINT ignored, and so would every
# process that a test starts and then interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
