"""Chaos for an agent of yours: every crash point, cancel, timeout and spoilt reply, and what does not hold.

`chaos(make, script=...)` is the command `fencepost chaos` as a function; `read_script` reads a file of replies.
"""

from fencepost.testing.chaos.facts import Finding, Plan, Report
from fencepost.testing.chaos.rehearsals import chaos
from fencepost.testing.chaos.script import read_lines, read_script

__all__ = ["Finding", "Plan", "Report", "chaos", "read_lines", "read_script"]
