"""Learning: losses, schedules, the trainer, merging and evaluation."""
