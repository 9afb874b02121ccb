"""A real federation: what its organiser and its sites run."""
