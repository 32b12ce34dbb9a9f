"""The Python SDK as a client of `skein acp`: `python acp_client.py SKEIN FOLDER`.

Plays the story that tests/it/acp_clients.rs asks of every client and prints what the SDK's typed handlers received,
as one JSON object. Judges nothing. This client lends the agent nothing: no files, no terminal.
"""

import asyncio
import json
import os
import sys

from acp import PROTOCOL_VERSION, spawn_agent_process, text_block
from acp.schema import AllowedOutcome, Implementation, RequestPermissionResponse

PROGRAM, CWD = sys.argv[1:]
WRITE = '/developer.write_file {"path":"a.txt","content":"x"}'
EDIT = '/developer.edit_file {"path":"a.txt","edits":[{"before":"x","after":"y"}]}'


def plain(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


class Peer:
    """One process of the agent with one client, which keeps what it is told."""

    def __init__(self):
        self.updates, self.asked = [], []
        self.choice = "allow_once"
        # A call that runs has said something.
        self.heard = asyncio.Event()

    async def session_update(self, session_id, update, **_):
        self.updates.append(plain(update))
        if update.session_update == "tool_call_update" and update.content:
            self.heard.set()

    async def request_permission(self, session_id, tool_call, options, **_):
        self.asked.append({"toolCall": plain(tool_call), "kinds": [option.kind for option in options]})
        chosen = next(option for option in options if option.kind == self.choice)
        outcome = AllowedOutcome(outcome="selected", option_id=chosen.option_id)
        return RequestPermissionResponse(outcome=outcome)

    async def tell(self, story):
        """The agent's whole life: from its start over the story to its exit code."""
        environment, inherit = dict(os.environ), {"stderr": None}
        async with spawn_agent_process(
            self, PROGRAM, "acp", env=environment, cwd=CWD, transport_kwargs=inherit
        ) as (agent, process):
            hello = await agent.initialize(PROTOCOL_VERSION, client_info=Implementation(name="skein-test", version="1"))
            answer = await story(agent, hello)
        return answer | {"exit": process.returncode}

    async def turn(self, agent, session, text, choice="allow_once", meanwhile=None):
        """What one turn brought: its end, the updates and the questions."""
        self.choice = choice
        self.heard.clear()
        updates, asked = len(self.updates), len(self.asked)
        ended = asyncio.create_task(agent.prompt(prompt=[text_block(text)], session_id=session))
        if meanwhile:
            await meanwhile()
        stop = (await ended).stop_reason
        return {"stopReason": stop, "updates": self.updates[updates:], "asked": self.asked[asked:]}


async def main():
    first = Peer()

    async def live(agent, hello):
        new = await agent.new_session(cwd=CWD)
        session = new.session_id
        await agent.set_session_mode(session_id=session, mode_id="goose/specialist")

        async def cancel():
            await first.heard.wait()
            await agent.cancel(session_id=session)

        turns = {
            "read": await first.turn(agent, session, "read notes.txt"),
            "written": await first.turn(agent, session, WRITE),
            "refused": await first.turn(agent, session, EDIT, "reject_once"),
            "edited": await first.turn(agent, session, EDIT),
            "cancelled": await first.turn(agent, session, "run echo began; sleep 60", "allow_once", cancel),
        }
        known = await agent.list_sessions(cwd=CWD)
        return {
            "hello": plain(hello),
            "sessionId": session,
            "modes": plain(new.modes),
            "sessions": plain(known)["sessions"],
            "turns": turns,
        }

    lived = await first.tell(live)
    second = Peer()

    async def again(agent, _):
        known = await agent.load_session(cwd=CWD, session_id=lived["sessionId"])
        replay = list(second.updates)
        next_turn = await second.turn(agent, lived["sessionId"], "read a.txt")
        return {"modes": plain(known.modes), "replay": replay, "next": next_turn}

    print(json.dumps({"lived": lived, "loaded": await second.tell(again)}))


asyncio.run(main())
