"""Agents built on Fencepost: they import only its public package, as a user's own agent would."""
