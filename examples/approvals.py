"""Who may do what: a rules file allows one restart, denies another, and has a person asked about the third.

Run it with `python examples/approvals.py`; the rules are in `restart_rules.toml`. While a person is asked, the task
waits and holds nothing. It prints:

    WAITING_APPROVAL: about restart({"service":"payment"})
    restarted so far: none
    SUCCEEDED: done
    restarted: cache, payment
    ledger: denied: the ledger is restarted by its own team
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from fencepost import (
    Agent,
    Limits,
    MemoryStore,
    Rules,
    ScriptedModel,
    ToolMessage,
    decide_approval,
    resume_task,
    run_task,
    tool,
)
from fencepost.testing import call, calls, say

RULES = Path(__file__).with_name("restart_rules.toml")
SERVICES = ("cache", "payment", "ledger")
restarted: list[str] = []


@tool(effect="write")
async def restart(service: str) -> str:
    """Restart a service."""
    restarted.append(service)
    return f"restarted {service}"


async def main() -> None:
    """Ask for all three, approve what is asked, go on."""
    model = ScriptedModel([calls(*(call("restart", service=name) for name in SERVICES)), say("done")])
    agent = Agent("operator", model, Limits(steps=3), tools=(restart,), boundary=Rules.load(RULES))
    store = MemoryStore()
    waits = await run_task(agent, "restart everything", store=store)
    (ask,) = waits.asks
    print(f'{waits.state.value}: about {ask.tool}({{"service":"{SERVICES[ask.position]}"}})')
    print(f"restarted so far: {', '.join(restarted) or 'none'}")
    await decide_approval(
        store, waits.task, f"{ask.step}.{ask.position}", approve=True, by="local/second-person"
    )
    result = await resume_task(agent, waits.task, store=store)
    print(f"{result.state.value}: {result.text}")
    print(f"restarted: {', '.join(restarted)}")
    last = [message for message in result.messages if isinstance(message, ToolMessage)][-1]
    print(f"ledger: {last.content}")


if __name__ == "__main__":
    asyncio.run(main())
