"""The pure core: facts in, moves out. Read entries, state, decide, in this order."""
