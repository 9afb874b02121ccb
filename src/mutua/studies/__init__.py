"""Several runs that say something together: comparisons, grids and the papers' tables."""
