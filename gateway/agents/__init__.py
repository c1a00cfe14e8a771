"""The hub: where agents connect, and what is said to them."""
