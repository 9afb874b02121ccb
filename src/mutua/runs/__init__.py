"""Runs: the folder that a run leaves, and what can be done with it."""
