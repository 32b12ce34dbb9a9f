"""An agent behind the Python SDK of A2A, for the tests of `runtime: {a2a: …}`. Prints its port, then serves.

The first argument is the token that requests must carry. The second, if any, is `poll`: the agent does not stream. A
prompt says what the agent does: `ask`, `permission`, `form`, `call TOOL JSON`, `tools`, `fail`, `hang`. Any
other prompt is repeated, with the number of the message in its context.
"""

import asyncio
import json
import socket
import sys

import uvicorn
from a2a.helpers import proto_helpers
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse

CALLS = "urn:skein:a2a:calls:1"
TOKEN = sys.argv[1]
STREAMS = sys.argv[2:] != ["poll"]


class Agent(AgentExecutor):
    def __init__(self):
        self.counts = {}
        self.waiting = {}

    async def execute(self, context, events):
        updater = TaskUpdater(events, context.task_id, context.context_id)
        if context.current_task is None:
            await events.enqueue_event(proto_helpers.new_task_from_user_message(context.message))
        await updater.start_work()
        count = self.counts[context.context_id] = self.counts.get(context.context_id, 0) + 1
        text = context.get_user_input()
        if question := self.waiting.pop(context.task_id, None):
            data = proto_helpers.get_data_parts(context.message.parts)
            answer = json.dumps(data[0], sort_keys=True) if data else text
            return await self.say(updater, f"{question}: {answer}")
        words = text.split()
        last = words[-1] if words else ""
        if last == "ask":
            await self.ask(updater, context, "colour", "Which colour?", None)
        elif last == "permission":
            details = {"kind": "permission", "options": ["allow", "reject"], "arguments": {"path": "x.txt"}}
            await self.ask(updater, context, "permission", "May I delete x.txt?", details)
        elif last == "form":
            schema = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
            await self.ask(updater, context, "form", "How large?", {"kind": "form", "schema": schema})
        elif "call" in words:
            tool, arguments = text[text.rindex("call ") + 5 :].split(" ", 1)
            details = {"kind": "call", "tool": tool, "arguments": json.loads(arguments)}
            await self.ask(updater, context, "result", "", details)
        elif last == "tools":
            metadata = MessageToDict(context.message.metadata)
            names = [tool["name"] for tool in metadata.get(CALLS, {}).get("tools", [])]
            await self.say(updater, " ".join(sorted(names)) or "no tools")
        elif last == "fail":
            await updater.failed(updater.new_agent_message([proto_helpers.new_text_part("the disk is full")]))
        elif last == "hang":
            await updater.add_artifact([proto_helpers.new_text_part("I begin")], artifact_id="answer")
            await asyncio.sleep(600)
        else:
            await self.say(updater, f"message {count}: {last}")

    async def say(self, updater, text):
        half = len(text) // 2
        for position, piece in enumerate([text[:half], text[half:]]):
            part = proto_helpers.new_text_part(piece)
            await updater.add_artifact([part], artifact_id="answer", append=position > 0, last_chunk=position > 0)
        await updater.complete()

    async def ask(self, updater, context, name, text, details):
        parts = [proto_helpers.new_text_part(text)] if text else []
        if details:
            parts.append(proto_helpers.new_data_part(details))
        self.waiting[context.task_id] = name
        await updater.requires_input(updater.new_agent_message(parts))

    async def cancel(self, context, events):
        await TaskUpdater(events, context.task_id, context.context_id).cancel()
        print(f"cancelled {context.task_id}", flush=True)


class CheckToken:
    """Refuses requests without the token, as a server behind a gateway does."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            if headers.get(b"authorization") != f"Bearer {TOKEN}".encode():
                return await PlainTextResponse("no token", status_code=401)(scope, receive, send)
        await self.app(scope, receive, send)


def main():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    card = a2a_pb2.AgentCard(
        name="Test agent",
        description="Does what its prompt says",
        version="1.0.0",
        supported_interfaces=[
            a2a_pb2.AgentInterface(
                url=f"http://127.0.0.1:{port}/rpc", protocol_binding="JSONRPC", protocol_version="1.0"
            )
        ],
        capabilities=a2a_pb2.AgentCapabilities(
            streaming=STREAMS, extensions=[a2a_pb2.AgentExtension(uri=CALLS, description="Calls tools of the client")]
        ),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[a2a_pb2.AgentSkill(id="test", name="Test", description="Tests", tags=["test"])],
    )
    handler = DefaultRequestHandler(agent_executor=Agent(), task_store=InMemoryTaskStore(), agent_card=card)
    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, rpc_url="/rpc")]
    config = uvicorn.Config(CheckToken(Starlette(routes=routes)), log_level="warning")
    print(port, flush=True)
    uvicorn.Server(config).run(sockets=[listener])


main()
