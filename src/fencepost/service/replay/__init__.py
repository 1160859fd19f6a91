"""Driving the real loop over a journal, offline, to find the first place where it would do something else."""
