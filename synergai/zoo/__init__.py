"""Engines to serve: recipes, builders and published weights."""
