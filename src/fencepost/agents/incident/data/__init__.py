"""The bundled incident: made-up data, marked synthetic, for `fencepost demo`."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
METRICS = FOLDER / "synthetic-metrics.json"
CALLS = FOLDER / "synthetic-calls.json"
CHANGES = FOLDER / "synthetic-changes.jsonl"
LOGS = FOLDER / "synthetic-logs"
ALERT_AT = "2026-03-14T10:05:00Z"
UNTIL = "2026-03-14T10:12:00Z"
