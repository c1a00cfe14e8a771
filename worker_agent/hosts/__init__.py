"""The agent's side of the engine hosts: starting, feeding and supervising them."""
