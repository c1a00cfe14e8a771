"""The catalogue of inference engines: definitions, builders, samples, pre- and post-processing."""
