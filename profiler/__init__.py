"""The offline phase: measures every engine in every configuration and writes the dictionary."""
