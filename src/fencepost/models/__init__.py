"""Models: scripted, functions, and wrappers around any other."""
