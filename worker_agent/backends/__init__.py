"""Inference runtimes behind one protocol; imported in engine hosts only."""
