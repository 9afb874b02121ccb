"""The sections of a report, one module per family: each gives the blocks that stand below a heading."""
