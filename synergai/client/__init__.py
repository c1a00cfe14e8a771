"""The client of a gateway; its public names are those of the package synergai."""
