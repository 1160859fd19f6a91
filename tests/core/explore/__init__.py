"""Every interleaving of a small world, and planted bugs that the search must find."""
