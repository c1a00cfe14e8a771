"""Model files: what each format says about a model, read and checked without its runtime."""
