"""Who takes part, what crosses between them, what they keep, and the plan."""
