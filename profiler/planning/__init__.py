"""Plans of routes, and the planners of the literature."""
