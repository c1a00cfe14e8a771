"""The scheduling core: events in, commands out.

Pure and synchronous. Nothing below this package reads a clock, sleeps, draws unseeded
random numbers or knows a transport; a test asserts it. Two drivers run the same code: the
gateway's dispatcher in real time, and the simulator in virtual time.
"""
