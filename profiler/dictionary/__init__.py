"""Commands on the configuration dictionary."""
