"""The fleet page: what it shows, from the events of the scheduling core, and its files."""
