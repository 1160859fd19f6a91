"""Print what every search sees: the counts, and for each planted bug the shortest way to its harm."""

from __future__ import annotations

import sys

from tests.core.explore.explorer import search
from tests.core.explore.machine import Machine
from tests.core.explore.planted import PLANTED
from tests.core.explore.world import SCRIPTS


def main() -> int:
    """Run the searches; 1 when a rule is broken or a bug is not found."""
    wrong = 0
    for name, script in SCRIPTS.items():
        seen = search(Machine(), script)
        sys.stdout.write(f"{name}: {seen}\n{seen.found or 'every rule holds'}\n\n")
        wrong += seen.found is not None
    script = next(iter(SCRIPTS.values()))
    for name, planted in PLANTED.items():
        seen, harmed = search(planted.machine, script), search(planted.machine, script, {planted.harm})
        sys.stdout.write(f"{name}: found after {seen.worlds} worlds, its harm after {harmed.worlds}\n")
        sys.stdout.write(f"{seen.found}\n{harmed.found}\n\n")
        wrong += seen.found is None or harmed.found is None
    return min(wrong, 1)


if __name__ == "__main__":
    raise SystemExit(main())
