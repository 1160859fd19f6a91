"""Which services call which, from a file: `{"checkout": ["payment", "inventory"]}`, in JSON.

It lets the diagnosis tell a failing service from the callers that fail with it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from fencepost.agents.incident.sources.errors import Refused, Unavailable
from fencepost.agents.incident.sources.process import reason
from fencepost.agents.incident.sources.window import shown

CALLS_BYTES = 1024 * 1024  # ten thousand services; a larger file is something else

Calls = dict[str, tuple[str, ...]]


def read_calls(path: str) -> Calls:
    """Callers and what they call. Raises `SourceError` when the file is not that."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(CALLS_BYTES + 1)
    except OSError as failure:
        raise Unavailable(
            f"The file of calls {shown(path)} cannot be read ({reason(failure)}); check the path."
        ) from None
    if len(raw) > CALLS_BYTES:
        raise Refused(f"The file of calls {shown(path)} has over {CALLS_BYTES} bytes; cut it.")
    try:
        return msgspec.json.decode(raw, type=Calls)
    except msgspec.DecodeError as why:
        raise Refused(
            f"The file of calls {shown(path)} is not understood ({why}); "
            'write it as {"caller": ["called", "called"]}.'
        ) from None
