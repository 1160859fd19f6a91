"""The loop, and all that is between the core and the world."""
