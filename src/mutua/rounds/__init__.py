"""The round loop, and the record of what happened in it."""
