"""What people and workers do to tasks, one function per command."""
