"""An MCP server on stdio with a small calendar. It needs nothing but Python."""

import json
import sys

DAY = {"type": "string", "description": "A day, as in 2026-11-16", "pattern": r"^\d{4}-\d{2}-\d{2}$"}
HOUR = {"type": "integer", "description": "The hour at which it starts", "minimum": 0, "maximum": 23}
TITLE = {"type": "string", "description": "What it is about", "minLength": 1}

TOOLS = [
    {
        "name": "list_events",
        "description": "List the events of a day",
        "inputSchema": {"type": "object", "properties": {"day": DAY}, "required": ["day"]},
    },
    {
        "name": "add_event",
        "description": "Add an event of one hour",
        "inputSchema": {
            "type": "object",
            "properties": {"day": DAY, "hour": HOUR, "title": TITLE},
            "required": ["day", "hour", "title"],
        },
    },
]

# One process serves all sessions, so all of them see the same events.
events = [{"day": "2026-11-16", "hour": 9, "title": "Dentist"}]


def text(text, error=False):
    return {"content": [{"type": "text", "text": text}], "isError": error}


def list_events(day):
    found = sorted((event for event in events if event["day"] == day), key=lambda event: event["hour"])
    listed = [f"{event['hour']}:00 {event['title']}" for event in found]
    return {**text("\n".join(listed) or "no events"), "structuredContent": {"events": found}}


def add_event(day, hour, title):
    taken = [event for event in events if (event["day"], event["hour"]) == (day, hour)]
    if taken:
        return text(f"{taken[0]['title']} is at {hour}:00; choose another hour", error=True)
    events.append({"day": day, "hour": hour, "title": title})
    return text(f"added {title} on {day} at {hour}:00")


def answer(method, params):
    if method == "initialize":
        server = {"name": "calendar", "version": "1.0.0"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call" and params["name"] == "list_events":
        return list_events(**params["arguments"])
    if method == "tools/call" and params["name"] == "add_event":
        return add_event(**params["arguments"])
    if method == "ping":
        return {}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    result = answer(message.get("method"), message.get("params", {}))
    if result is None:
        reply["error"] = {"code": -32601, "message": f"there is no {message.get('method')} here"}
    else:
        reply["result"] = result
    print(json.dumps(reply), flush=True)
