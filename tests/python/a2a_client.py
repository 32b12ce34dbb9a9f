"""Plays a story with the Python client of A2A. Prints a line of JSON for each step.

The first argument is the address of the server, the second the token. The model of the test writes a file if it is
asked to `write`, never ends if it is asked to `hang`, and otherwise repeats what it is asked.
"""

import asyncio
import json
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import a2a_pb2
from a2a.utils.errors import A2AError

AGENT = "goose-assistant"


def tell(step, **facts):
    print(json.dumps({"step": step, **facts}), flush=True)


def state(task):
    return a2a_pb2.TaskState.Name(task.status.state)


def text(artifacts):
    return "".join(part.text for artifact in artifacts for part in artifact.parts)


def message(words, task=None, context=None):
    sent = a2a_pb2.Message(message_id=str(uuid.uuid4()), role="ROLE_USER", parts=[a2a_pb2.Part(text=words)])
    sent.task_id = task or ""
    sent.context_id = context or ""
    return a2a_pb2.SendMessageRequest(message=sent)


def kind(event):
    return event.WhichOneof("payload")


async def send(client, words, **ids):
    """Sends a message and returns the task when it has stopped."""
    events = [event async for event in client.send_message(message(words, **ids))]
    return events[-1].task


async def follow(events):
    """Returns the kinds of the events, the text of the artifacts and the last state."""
    kinds, said, last = [], "", None
    async for event in events:
        kinds.append(kind(event))
        if kind(event) == "task":
            said, last = text(event.task.artifacts), state(event.task)
        elif kind(event) == "artifact_update":
            said += text([event.artifact_update.artifact])
        elif kind(event) == "status_update":
            last = state(event.status_update)
    return kinds, said, last


async def main():
    address, token = sys.argv[1:]
    async with httpx.AsyncClient(trust_env=False) as public:
        card = await A2ACardResolver(public, address).get_agent_card()
        tell("public card", name=card.name, url=card.supported_interfaces[0].url, skills=len(card.skills))

    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(trust_env=False, headers=headers, timeout=60) as http:
        card = await A2ACardResolver(http, f"{address}/a2a/{AGENT}").get_agent_card()
        plain = ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(card)
        client = ClientFactory(ClientConfig(httpx_client=http)).create(card)
        extended = await client.get_extended_agent_card(a2a_pb2.GetExtendedAgentCardRequest())
        tell("card", name=card.name, skills=[skill.id for skill in card.skills], extended=extended.name)

        task = await send(plain, "one")
        read = await plain.get_task(a2a_pb2.GetTaskRequest(id=task.id))
        tell("send", state=state(task), text=text(task.artifacts), same=read == task)

        kinds, said, last = await follow(client.send_message(message("two")))
        tell("stream", first=kinds[0], last=last, kinds=sorted(set(kinds)), text=said)

        later = await send(plain, "three", context=task.context_id)
        tell("context", same=later.context_id == task.context_id, other=later.id != task.id)

        waiting = await send(plain, "write")
        question = waiting.status.message
        details = question.parts[1].data.struct_value
        kinds, said, last = await follow(client.send_message(message("allow", task=waiting.id)))
        tell("input", before=state(waiting), options=list(details["options"]), after=last, text=said)

        polling = ClientFactory(ClientConfig(httpx_client=http, streaming=False, polling=True)).create(card)
        running = await send(polling, "hang")
        subscribed = client.subscribe(a2a_pb2.SubscribeToTaskRequest(id=running.id))
        first = await anext(subscribed)
        listed = await client.list_tasks(a2a_pb2.ListTasksRequest(status="TASK_STATE_WORKING"))
        following = asyncio.create_task(follow(subscribed))
        cancelled = await client.cancel_task(a2a_pb2.CancelTaskRequest(id=running.id))
        _, _, last = await following
        tell("resubscribe", first=kind(first), same=first.task.id == running.id, last=last)
        tell("list", only=[found.id for found in listed.tasks] == [running.id], total=listed.total_size)
        tell("cancel", before=state(running), after=state(cancelled))

        for name, call in {
            "unknown": client.get_task(a2a_pb2.GetTaskRequest(id=str(uuid.uuid4()))),
            "ended": client.cancel_task(a2a_pb2.CancelTaskRequest(id=running.id)),
            "terminal": follow(client.subscribe(a2a_pb2.SubscribeToTaskRequest(id=running.id))),
        }.items():
            try:
                await call
                tell(name, error=None)
            except A2AError as error:
                tell(name, error=type(error).__name__)


asyncio.run(main())
