"""The parts of a gateway: each is complete when it is built, and knows those before it."""
