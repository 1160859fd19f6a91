"""The command line: what the service says, printed. Start reading at program.py.

Rule 1: everything that is printed goes through `text.shown`: what came from outside is shown, never obeyed.
Rule 2: stdout carries the result (with `--json`: one JSON document), stderr everything else.
Rule 3: every way to end has an exit code, and exits.py is the one table of them.
Rule 4: a command imports what it needs when it runs, so that `fencepost --version` stays quick.
"""
