#!/usr/bin/env python3
"""A small agent of the Agent Client Protocol on stdio, which Skein runs as an external agent. It repeats the
prompt, and loads any session, because it remembers none."""

import json
import sys


def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def chunk(session, text):
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    send(method="session/update", params={"sessionId": session, "update": update})


sessions = 0
for line in sys.stdin:
    message = json.loads(line)
    method, number, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method is None or number is None:
        continue
    if method == "initialize":
        send(id=number, result={"protocolVersion": 1, "agentCapabilities": {"loadSession": True}, "authMethods": []})
    elif method == "session/new":
        sessions += 1
        send(id=number, result={"sessionId": f"session-{sessions}"})
    elif method == "session/load":
        send(id=number, result={})
    elif method == "session/prompt":
        for word in " ".join(part.get("text", "") for part in params["prompt"]).split()[-20:]:
            chunk(params["sessionId"], word + " ")
        send(id=number, result={"stopReason": "end_turn"})
    else:
        send(id=number, error={"code": -32601, "message": f"no method {method}"})
