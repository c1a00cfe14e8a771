"""The engine zoo: recipes, builders and published weights."""
