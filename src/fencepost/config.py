"""Settings: where the store is, and how much an error says. They come from the environment.

Rule 1: a `FENCEPOST_` variable that we do not know is refused, because a mistyped one would silently mean the
default, and the default store is not the one that was meant.
Rule 2: reading settings touches no file.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from fencepost.core.errors import DefinitionInvalid

PREFIX = "FENCEPOST_"
STORE = "FENCEPOST_STORE"
DEBUG = "FENCEPOST_DEBUG"
SETTINGS = (STORE, DEBUG)
# Read by others under our prefix: a rollback command's key, and what the test suite is told of its machine.
NOT_OURS = frozenset({"FENCEPOST_IDEMPOTENCY_KEY", "FENCEPOST_DATA", "FENCEPOST_REQUIRE"})
ON, OFF = frozenset({"1", "true", "yes", "on"}), frozenset({"", "0", "false", "no", "off"})


class Settings(Struct, frozen=True):
    """What holds for one command. Unless `store_given`, nobody chose the store, and its folder is made."""

    store: Path
    store_given: bool = False
    debug: bool = False


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings of this environment, or DefinitionInvalid that names the variable and what it may be."""
    for name in environment:
        if name.startswith(PREFIX) and name not in SETTINGS and name not in NOT_OURS:
            raise DefinitionInvalid(f"the environment sets {name}, which is no setting; {_meant(name)}")
    said = environment.get(DEBUG, "").strip().lower()
    if said not in ON and said not in OFF:
        raise DefinitionInvalid(f"{DEBUG} is {said!r}; set it to 1 to see tracebacks, or leave it out")
    given = environment.get(STORE, "")
    return Settings(
        Path(given) if given else default_store(environment), store_given=bool(given), debug=said in ON
    )


def default_store(environment: Mapping[str, str]) -> Path:
    """The store of this user: under $XDG_STATE_HOME, or ~/.local/state where that is not an absolute path."""
    state = Path(environment.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        home = environment.get("HOME", "")
        if not home:
            raise DefinitionInvalid(f"neither {STORE}, XDG_STATE_HOME nor HOME is set; set {STORE} to a file")
        state = Path(home, ".local", "state")
    return state / "fencepost" / "fencepost.db"


def _meant(name: str) -> str:
    ours = {setting.removeprefix(PREFIX): setting for setting in SETTINGS}
    near = [ours[one] for one in difflib.get_close_matches(name.removeprefix(PREFIX), ours, n=1)]
    return f"did you mean {near[0]}?" if near else f"there are {' and '.join(SETTINGS)}; unset it"
