"""A real Prometheus server over given samples, for tests that are marked `needs_prometheus`.

Rules of this file:
- Loopback only, on a port that the kernel named; nothing is scraped, so nothing leaves the machine.
- Ready means that it says so; nobody sleeps and hopes. It is ended by its own process id.
- `retention.time=100y`: without it Prometheus deletes samples that are older than two weeks.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

# Ready in 3 s on a quiet machine; ten times that on a busy one, then it hangs.
READY_SECONDS = 30.0
# Words of the line that Prometheus logs once it answers (main.go of all 2.x versions).
READY_WORDS = b"Server is ready to receive web requests"
# Another process may take the free port before Prometheus does.
PORTS_TRIED = 3


class NotReady(Exception):
    """Prometheus ended or went silent before it was ready."""


@contextlib.contextmanager
def prometheus(samples: Path, folder: Path) -> Iterator[str]:
    """The address of a server that knows the samples of an OpenMetrics file; it is ended on leaving."""
    blocks, config = folder / "tsdb", folder / "prometheus.yml"
    blocks.mkdir()
    config.write_text("scrape_configs: []\n", encoding="ascii")
    create = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(samples), str(blocks)]
    subprocess.run(create, check=True, capture_output=True, timeout=READY_SECONDS)
    process, url = _started(blocks, config)
    try:
        yield url
    finally:
        _end(process)


def _started(blocks: Path, config: Path) -> tuple[subprocess.Popen[bytes], str]:
    for tried in range(1, PORTS_TRIED + 1):
        address = f"127.0.0.1:{_free_port()}"
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={blocks}",
                "--storage.tsdb.retention.time=100y",
                f"--web.listen-address={address}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # a test logs far less than a pipe holds, so nobody need read on
        )
        try:
            _wait_until_ready(process)
        except BaseException as why:
            _end(process)
            if isinstance(why, NotReady) and tried < PORTS_TRIED:
                continue
            raise
        return process, f"http://{address}"
    raise AssertionError("the last try returned or raised")


def _wait_until_ready(process: subprocess.Popen[bytes]) -> None:
    """It said in its log that it is ready. A silence of `READY_SECONDS`, or its end, raises NotReady."""
    assert process.stderr is not None
    logged = b""
    while READY_WORDS not in logged:
        if not select.select([process.stderr], [], [], READY_SECONDS)[0]:
            raise NotReady(f"silent for {READY_SECONDS:g} s after: {logged[-400:]!r}")
        part = os.read(process.stderr.fileno(), 65536)
        if not part:
            raise NotReady(f"ended after: {logged[-400:]!r}")
        logged += part


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=READY_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
