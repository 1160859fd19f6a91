"""The incident agent: which service is unlike itself, since when, what changed, and what is not known."""
