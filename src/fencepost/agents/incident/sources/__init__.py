"""What the incident agent's tools stand on: metrics, logs, releases and the rollback command.

Rules of this package:
- Configuration comes from the operator in frozen structs; arguments come from a model and are checked against
  it. A model never writes a query, a pattern, a path or a command line.
- Everything read is bounded: time, bytes, lines, points, series. What was cut or skipped is counted in the
  result and never left out silently.
- What was read is data: it is returned as it is (only made valid Unicode), never looked at for instructions.
- A result is a dict that JSON can hold. What is wrong is one sentence in a `SourceError`.
"""
