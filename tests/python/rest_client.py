"""Plays a story with the Python client of the Agent Communication Protocol. Prints a line of JSON for each step.

The first argument is the address of the server, the second the token. The model of the test writes a file if it is
asked to `write`, never ends if it is asked to `hang`, and otherwise repeats what it is asked.
"""

import asyncio
import json
import sys

from acp_sdk.client import Client
from acp_sdk.models import ACPError, Message, MessageAwaitResume, MessagePart

AGENT = "goose-assistant"


def tell(step, **facts):
    print(json.dumps({"step": step, **facts}), flush=True)


def text(run):
    return str(run.output[-1]) if run.output else ""


def answer(word):
    return MessageAwaitResume(message=Message(parts=[MessagePart(content=word)]))


async def wait(client, run, status):
    while run.status.value != status:
        await asyncio.sleep(0.05)
        run = await client.run_status(run_id=run.run_id)
    return run


async def main():
    headers = {"Authorization": f"Bearer {sys.argv[2]}"}
    async with Client(base_url=sys.argv[1], headers=headers, trust_env=False) as client:
        await client.ping()
        names = [agent.name async for agent in client.agents()]
        tell("agents", listed=AGENT in names, read=(await client.agent(name=AGENT)).name)

        run = await client.run_sync("one", agent=AGENT)
        tell("sync", status=run.status.value, text=text(run))

        run = await client.run_async("two", agent=AGENT)
        run = await wait(client, run, "completed")
        tell("async", status=run.status.value, text=text(run))
        events = [event.type async for event in client.run_events(run_id=run.run_id)]
        tell("events", first=events[0], last=events[-1])

        events = [event async for event in client.run_stream("three", agent=AGENT)]
        parts = [event.part.content or "" for event in events if event.type == "message.part"]
        tell("stream", last=events[-1].type, text="".join(parts))

        run = await client.run_sync("write", agent=AGENT)
        status = run.status.value
        run = await client.run_resume_sync(answer("allow"), run_id=run.run_id)
        tell("resume", before=status, after=run.status.value, text=text(run))

        run = await client.run_async("hang", agent=AGENT)
        await client.run_cancel(run_id=run.run_id)
        run = await wait(client, run, "cancelled")
        tell("cancel", status=run.status.value)

        async with client.session() as session:
            first = await session.run_sync("four", agent=AGENT)
            second = await session.run_sync("five", agent=AGENT)
            found = await session.refresh_session()
            same = first.session_id == second.session_id == found.id
            tell("session", same=same, text=text(second))

        try:
            await client.agent(name="no-such")
        except ACPError as error:
            tell("error", code=error.error.code)


asyncio.run(main())
