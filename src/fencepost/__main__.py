"""`python -m fencepost` is the command."""

from fencepost.app import main

main()
