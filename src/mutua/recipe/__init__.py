"""What users write: a whole experiment in a file, and the federation that it makes."""
