"""Things to try, each a command of its own."""
