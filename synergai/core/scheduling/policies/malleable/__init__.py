"""The malleable policy: planner, snapshot and replanning."""
