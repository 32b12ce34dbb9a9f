"""An agent made with the Python SDK: `python acp_agent.py`. A prompt is a command:

    say WORDS      a chunk for each word
    read PATH      asks the client for the file, as a tool call, and says what is in it
    permit TITLE   a tool call, and a question with three answers of its own; says which was chosen
    hang           says so, and waits until it is cancelled

tests/npm/acp-agent.mjs does the same with the TypeScript SDK.
"""

import asyncio
import re
import uuid

from acp import PROTOCOL_VERSION, Agent, run_agent, start_tool_call, update_agent_message_text, update_tool_call
from acp.schema import (
    AgentCapabilities,
    Implementation,
    InitializeResponse,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    ToolCallUpdate,
)

OPTIONS = [
    PermissionOption(option_id="py-yes", name="Do it", kind="allow_once"),
    PermissionOption(option_id="py-always", name="Always do it", kind="allow_always"),
    PermissionOption(option_id="py-no", name="Leave it", kind="reject_once"),
]


class Echo(Agent):
    def __init__(self):
        # What ends a turn that hangs, by session.
        self.cancelled = {}

    def on_connect(self, conn):
        self.client = conn

    async def initialize(self, protocol_version, **_):
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_info=Implementation(name="skein-test-py", version="1"),
            agent_capabilities=AgentCapabilities(load_session=False),
        )

    async def new_session(self, cwd, **_):
        return NewSessionResponse(session_id=str(uuid.uuid4()))

    async def prompt(self, session_id, prompt, **_):
        text = " ".join(block.text if block.type == "text" else f"[{block.type}]" for block in prompt)
        return PromptResponse(stop_reason=await self.turn(session_id, text))

    async def cancel(self, session_id, **_):
        if session_id in self.cancelled:
            self.cancelled[session_id].set()

    async def turn(self, session, text):
        """One prompt: the reason of its end."""
        command, _, rest = text.partition(" ")
        call = f"call-{uuid.uuid4()}"
        if command == "say":
            for word in re.findall(r"\S+\s*", rest):
                await self.say(session, word)
        elif command == "read":
            begun = start_tool_call(call, f"Read {rest}", kind="read", status="in_progress")
            await self.client.session_update(session, begun)
            answer = await self.client.read_text_file(path=rest, session_id=session)
            await self.client.session_update(session, update_tool_call(call, status="completed"))
            await self.say(session, answer.content)
        elif command == "permit":
            begun = start_tool_call(call, rest, kind="execute", status="in_progress")
            await self.client.session_update(session, begun)
            asked = ToolCallUpdate(tool_call_id=call, title=rest)
            answer = await self.client.request_permission(session_id=session, tool_call=asked, options=OPTIONS)
            chosen = getattr(answer.outcome, "option_id", answer.outcome.outcome)
            status = "completed" if chosen in ("py-yes", "py-always") else "failed"
            await self.client.session_update(session, update_tool_call(call, status=status))
            await self.say(session, f"chosen {chosen}")
            return "cancelled" if chosen == "cancelled" else "end_turn"
        elif command == "hang":
            waits = self.cancelled.setdefault(session, asyncio.Event())
            await self.say(session, "hanging")
            await waits.wait()
            return "cancelled"
        else:
            await self.say(session, f"heard: {text}")
        return "end_turn"

    async def say(self, session, text):
        await self.client.session_update(session, update_agent_message_text(text))


if __name__ == "__main__":
    asyncio.run(run_agent(Echo()))
