"""Where journals survive: memory (read it first) and SQLite, under one set of rules."""
