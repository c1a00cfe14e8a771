"""The scheduling core: events in, commands out.

Pure and synchronous: nothing in this package reads a clock, sleeps, draws unseeded random
numbers or depends on a transport (enforced by a test). Two drivers run it: the gateway's
dispatcher in real time and the simulator in virtual time.
"""
