"""Tools in a process of their own: what crosses, what ends them, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fencepost
from fencepost.core.errors import ArgumentsInvalid, DefinitionInvalid, OutcomeUnknown, ToolFailed
from fencepost.core.values import stored
from fencepost.ports import CallContext, Tool
from fencepost.tools import children
from fencepost.tools.channel import Frame, ProcessLimits, Request, frame, request_frame
from fencepost.tools.child import received
from fencepost.tools.children import Child, started
from fencepost.tools.function import FunctionTool, tool
from fencepost.tools.process import ProcessTool
from tests.tools import killable

CONTEXT = CallContext("t1", "acme", "ann", step=2, position=1, start=3, key="key-2.1", seconds=30.0)
ROOT = Path(__file__).parents[2]
# This very package, wherever it was imported from.
IMPORTS = f"{Path(fencepost.__file__).parents[1]}{os.pathsep}{ROOT}"


def run(named: FunctionTool, **arguments: Any) -> Any:
    return named.run(named.prepare(msgspec.json.encode(arguments).decode()), CONTEXT)


def a_tool() -> ProcessTool:
    """A tool without a spare."""
    made = tool(isolation="process")(killable.Shelf.book)
    assert isinstance(made, ProcessTool)
    return made


# --- what crosses --------------------------------------------------------------------------------------------


async def test_a_process_tool_runs_elsewhere_and_once_per_process() -> None:
    assert isinstance(killable.double, Tool)
    assert not killable.double.threaded
    assert killable.double.definition.effect == "read"
    first, second = await run(killable.double, n=2), await killable.double(n=3)
    assert (first["n"], second["n"]) == (4, 6)
    assert os.getpid() not in (first["pid"], second["pid"])


async def test_an_async_function_gets_the_context_of_its_call() -> None:
    assert await run(killable.triple, n=2) == [6, "key-2.1", "t1"]


async def test_arguments_are_refused_before_any_process_is_asked() -> None:
    with pytest.raises(ArgumentsInvalid, match=r"\$\.n"):
        await killable.double(n=-1)


@pytest.mark.parametrize("kind", ["text", "bytes", "none", "big", "nan", "set", "number"])
async def test_a_value_is_stored_as_if_it_had_been_returned_here(kind: str) -> None:
    value = await run(killable.returns, kind=kind)
    assert stored(value, limit=10_000) == stored(killable.returns.function(kind), limit=10_000)


# --- what a body may end with --------------------------------------------------------------------------------

ENDS = {
    "exits": (ToolFailed, "ends failed: SystemExit: 3"),
    "raises": (ToolFailed, "ends failed: ValueError: no\0 ? good!"),
    "fails": (ToolFailed, "there is no such page"),
    "cannot tell": (OutcomeUnknown, "the line went dead"),
}


@pytest.mark.parametrize("how", ENDS)
async def test_what_a_body_raises_is_told_by_type_and_words(how: str) -> None:
    kind, says = ENDS[how]
    with pytest.raises(kind) as caught:
        await run(killable.writes, how=how)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(says)
    assert len(str(caught.value)) < 9_000


DEATHS = {
    "leaves": "its process ended with exit status 3 without a result",
    "kills itself": "its process was ended by SIGKILL without a result",
    "stops itself": "its process was ended by SIGTERM without a result",
    "babbles": "its process went on without a result",
    "lies": "its process went on without a result",
    "no json": "its process sent something that is no JSON",
}


@pytest.mark.parametrize("how", DEATHS)
async def test_a_process_that_ends_without_a_verdict_leaves_a_write_unknown(how: str) -> None:
    with pytest.raises(OutcomeUnknown) as caught:
        await run(killable.writes, how=how)
    assert str(caught.value) == f"ends: {DEATHS[how]}"


async def test_a_process_that_ends_without_a_verdict_fails_a_read() -> None:
    with pytest.raises(ToolFailed) as caught:
        await run(killable.reads, how="leaves")
    assert str(caught.value) == f"ends failed: {DEATHS['leaves']}"


# --- limits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("memory", "takes failed: MemoryError"),
        ("processor", "takes failed: its process was ended by SIGKILL without a result"),
        ("file", "takes failed: OSError: [Errno 27] File too large"),
    ],
)
async def test_a_body_that_takes_more_than_it_may_fails(what: str, says: str) -> None:
    with pytest.raises(ToolFailed) as caught:
        await run(killable.takes, what=what)
    assert str(caught.value) == says


@pytest.mark.parametrize("what", ["output", "json"])
async def test_a_long_result_loses_its_middle_on_the_way(what: str) -> None:
    text = await run(killable.takes, what=what)
    assert isinstance(text, str)
    assert len(text.encode()) <= killable.SMALL.output_bytes
    assert f"[... cut to {killable.SMALL.output_bytes} of " in text


async def test_a_result_that_does_not_fit_into_memory_is_still_a_success() -> None:
    text = await run(killable.takes, what="result memory")
    assert text == "<the result did not fit into the memory of its process>"


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (
            ProcessLimits(memory_bytes=0),
            "tool renamed: process.memory_bytes must be a whole number above 0, got 0",
        ),
        (ProcessLimits(cpu_seconds=1.5), "process.cpu_seconds must be a whole number above 0, got 1.5"),  # type: ignore[arg-type]
        (ProcessLimits(file_bytes=True), "process.file_bytes must be a whole number above 0, got True"),
        (ProcessLimits(output_bytes=2**40), "process.output_bytes is at most 67108864, got 1099511627776"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(limits: ProcessLimits, says: str) -> None:
    with pytest.raises(DefinitionInvalid) as caught:
        tool(isolation="process", process=limits)(killable.renamed)
    assert says in str(caught.value)


# --- what can be run in another process ----------------------------------------------------------------------


def test_a_function_that_another_process_cannot_import_is_refused() -> None:
    def inner(n: int) -> int:
        return n

    for function, place in (
        (inner, "as test_a_function_that_another_process_cannot_import_is_refused.<locals>.inner"),
        (killable.Shelf().borrowed, "as Shelf.borrowed"),
    ):
        with pytest.raises(DefinitionInvalid) as caught:
            tool(isolation="process", name="it")(function)
        assert str(caught.value) == (
            'tool it: isolation="process" needs a function that another process can import by module and name, and'
            f" this one is defined {place}; move it to the top of a module"
        )


@pytest.mark.parametrize("options", [{"isolation": "thread"}, {"process": ProcessLimits()}])
def test_an_isolation_that_does_not_exist_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionInvalid, match='isolation must be "process" or left out'):
        tool(**options)


async def test_a_function_inside_a_class_is_found_by_its_full_name() -> None:
    assert await run(tool(isolation="process")(killable.Shelf.book), n=1) == 2


async def test_a_function_that_differs_on_the_other_side_does_not_run() -> None:
    def other(n: str) -> str:
        return n

    other.__module__, other.__qualname__ = killable.__name__, "renamed"
    with pytest.raises(
        ToolFailed, match=r"nothing ran: .*renamed takes other arguments in a new process than here"
    ):
        await run(tool(isolation="process", name="renamed")(other), n="x")


async def test_a_module_that_another_process_cannot_import_fails_the_call_and_nothing_ran() -> None:
    def other(n: int) -> int:
        return n

    other.__module__, other.__qualname__ = "nowhere", "other"
    with pytest.raises(ToolFailed, match=r"nothing ran: a new process cannot import nowhere.other"):
        await run(tool(isolation="process")(other), n=1)


async def test_a_module_that_was_loaded_from_a_file_is_loaded_from_it_there_too(tmp_path: Path) -> None:
    file = tmp_path / "killable.py"
    file.write_text("def half(n: int) -> int:\n    return n // 2\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("tests.tools.killable_elsewhere", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        half = tool(isolation="process")(module.half)
    finally:
        del sys.modules[spec.name]
    assert await run(half, n=8) == 4


SCRIPT = """
import asyncio
from fencepost import DefinitionInvalid, tool

def main_function(n: int) -> int:
    return n + 1

try:
    named = tool(isolation="process")(main_function)
except DefinitionInvalid as error:
    print(error)
else:
    if __name__ == "__main__":
        print(asyncio.run(named(n=1)))
"""


@pytest.mark.parametrize("how", ["script", "module"])
def test_a_tool_of_the_main_module_is_found_where_that_has_a_name(tmp_path: Path, how: str) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT, encoding="utf-8")
    command = ["mine.py"] if how == "script" else ["-m", "mine"]
    said = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": IMPORTS},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert said.stderr == ""
    assert said.stdout.strip().endswith("move it to the top of a module" if how == "script" else "2")


# --- children ------------------------------------------------------------------------------------------------


class Listener:
    """Hears who began, and when the last of a tree is gone."""

    def __init__(self) -> None:
        self.begun, self.over, self.go = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.port, self.says_when = 0, False

    async def met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read(5) == b"begun"
        self.begun.set()
        if self.says_when:
            await self.go.wait()
            writer.write(b".")
        assert await reader.read() == b""
        writer.close()
        self.over.set()


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    listener = Listener()
    server = await asyncio.start_server(listener.met, "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        listener.port = server.sockets[0].getsockname()[1]
        yield listener


async def test_what_a_body_leaves_running_is_gone_when_its_call_has_ended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert await run(killable.lingers, port=server.getsockname()[1]) == "done"
        connection, _ = server.accept()
        with connection:
            connection.setblocking(False)
            assert connection.recv(5) == b"begun"
            assert connection.recv(1) == b""  # not "nothing yet": nobody is left who could write


async def test_a_call_that_is_cancelled_leaves_nothing_running(listener: Listener) -> None:
    call = asyncio.ensure_future(run(killable.hangs, port=listener.port))
    await listener.begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await listener.over.wait()


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Let every further descriptor of this process be refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_verdict_is_kept_on_a_machine_that_has_no_room_for_anything_else(listener: Listener) -> None:
    listener.says_when = True
    call = asyncio.ensure_future(run(killable.listens, port=listener.port))
    await listener.begun.wait()
    with no_descriptors():
        listener.go.set()
        assert await call == "done"


async def test_a_call_for_which_no_process_can_be_started_fails_and_nothing_ran() -> None:
    named = a_tool()
    with no_descriptors(), pytest.raises(ToolFailed, match="nothing ran: no process could be started"):
        await run(named, n=1)


async def test_a_direct_call_has_a_deadline_of_its_own_and_a_spare_waits_for_the_next() -> None:
    assert isinstance(killable.sits, ProcessTool)
    with pytest.raises(TimeoutError):
        await killable.sits()
    await asyncio.sleep(0)
    assert [spare.here for spare in killable.sits.spare._waiting] == [True]


VICTIM = """
import asyncio, sys
from tests.tools.killable import hangs
asyncio.run(hangs(port=int(sys.argv[1])))
"""


async def test_a_worker_that_is_killed_takes_its_tools_along(listener: Listener) -> None:
    if not children.prefix():
        pytest.skip("no PID namespaces here; run: apt-get install -y util-linux, outside of a container")
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, str(listener.port), cwd=ROOT, env={**os.environ, "PYTHONPATH": IMPORTS}
    )
    await listener.begun.wait()
    worker.kill()
    await worker.wait()
    await listener.over.wait()


async def test_a_worker_that_is_killed_takes_the_body_along_also_without_namespaces(
    listener: Listener,
) -> None:
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        VICTIM.replace("hangs", "listens"),
        str(listener.port),
        cwd=ROOT,
        env={"PATH": "/nowhere", "PYTHONPATH": IMPORTS},
    )
    await listener.begun.wait()
    worker.kill()
    await worker.wait()
    await listener.over.wait()


async def read(child: Child, size: int) -> bytes:
    return await asyncio.get_running_loop().sock_recv(child.channel, size)


def asking(named: FunctionTool, *, way: tuple[str, ...] | None = None) -> Child:
    assert isinstance(named, ProcessTool)
    return started(*named.target, named.definition.schema, way=way)


async def test_the_deadline_is_kept_by_the_child_itself() -> None:
    child = asking(killable.reads)
    arguments, past = '{"how":"waits"}', time.monotonic() - 3600
    await asyncio.get_running_loop().sock_sendall(
        child.channel, request_frame(Request(arguments, None, past, ProcessLimits()))
    )
    assert await child.gone() == 128 + signal.SIGALRM
    child.kill()


async def test_a_child_that_nobody_wants_any_more_ends() -> None:
    child = asking(killable.double)
    assert await read(child, 5) == frame(Frame.READY)
    child.channel.shutdown(1)
    assert await child.gone() == 0
    child.kill()


@pytest.mark.parametrize("ended", [False, True], ids=["killed", "sweeped"])
async def test_without_namespaces_a_tree_is_found_by_its_mark(listener: Listener, ended: bool) -> None:
    named = killable.lingers if ended else killable.hangs
    child = asking(named, way=())
    await asyncio.get_running_loop().sock_sendall(
        child.channel,
        request_frame(Request(f'{{"port":{listener.port}}}', None, time.monotonic() + 60, ProcessLimits())),
    )
    await listener.begun.wait()
    if ended:
        assert await child.gone() == 0
    child.kill()
    assert await child.gone() == (0 if ended else 128 + signal.SIGKILL)
    await listener.over.wait()


async def test_a_spare_that_died_costs_its_call_nothing() -> None:
    named = a_tool()
    await named.warm()
    spare = named.spare.taken()
    spare.kill()
    named.spare.put(spare)
    assert await run(named, n=1) == 2


async def test_a_spare_that_dies_while_it_is_asked_costs_its_call_nothing() -> None:
    named = a_tool()
    await named.warm()
    spare = named.spare.taken()
    spare.channel.shutdown(1)  # it reads an end, and goes
    named.spare.put(spare)
    assert await run(named, n=1) == 2


async def test_after_a_call_a_spare_waits_for_the_next_one() -> None:
    named = a_tool()
    assert await run(named, n=1) == 2
    await asyncio.sleep(0)
    (spare,) = named.spare._waiting
    assert spare.here
    assert named.spare.taken() is spare
    named.spare.put(spare)


def test_a_spare_that_nobody_asks_for_long_ends() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert received(theirs, idle=0.01) is None
        ours.sendall(request_frame(Request("{}", CONTEXT, 1.5, ProcessLimits())))
        assert received(theirs, idle=0.01) == Request("{}", CONTEXT, 1.5, ProcessLimits())


async def test_a_tool_that_is_forgotten_leaves_no_spare() -> None:
    named = a_tool()
    await named.warm()
    spare = named.spare.taken()
    named.spare.put(spare)
    del named
    assert await spare.gone() is not None
