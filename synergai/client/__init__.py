"""Client SDK; the package ``synergai`` exports its public names."""
