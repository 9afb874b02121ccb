"""Data: sources, splits, partitions and transforms."""
