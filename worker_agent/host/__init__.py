"""The engine host: a child process that runs one engine."""
