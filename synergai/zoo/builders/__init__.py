"""How the catalogue's engines are made: seeded or trained weights, and exporters."""
