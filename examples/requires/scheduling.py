"""An MCP server on stdio that plans meetings. It requires another service in the role `calendar`, and nothing but
Python."""

import json
import os
import shlex
import subprocess

from mcp_server import serve, text

PLAN_MEETING = {
    "name": "plan_meeting",
    "description": "Put a meeting of one hour into the calendar, in the first free hour from 9 to 17",
    "inputSchema": {
        "type": "object",
        "properties": {
            "day": {"type": "string", "description": "A day, as in 2026-11-16"},
            "title": {"type": "string", "description": "What it is about"},
        },
        "required": ["day", "title"],
    },
}


class RequiredService:
    """An MCP client for a service that this one requires. Skein starts this program with a command line that leads to
    exactly that service. The command line works once, so the connection stays open."""

    def __init__(self, role):
        command = os.environ[f"SKEIN_REQUIRES_{role.upper().replace('-', '_')}"]
        self.process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.last_id = 0
        client = {"name": "scheduling", "version": "1.0.0"}
        self.request("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        self.send({"method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def request(self, method, **params):
        self.last_id += 1
        self.send({"id": self.last_id, "method": method, "params": params})
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("id") == self.last_id and "method" not in message:
                if "error" in message:
                    raise RuntimeError(message["error"]["message"])
                return message["result"]
        raise RuntimeError("the connection to the calendar has ended")

    def call(self, tool, **arguments):
        result = self.request("tools/call", name=tool, arguments=arguments)
        if result.get("isError"):
            raise RuntimeError(result["content"][0]["text"])
        return result


calendar = None


def plan_meeting(day, title):
    global calendar
    # Skein may start a program and stop it again to find out what it speaks, so the first call connects.
    calendar = calendar or RequiredService("calendar")
    # Each call passes the rules of the session, and the user may be asked about it.
    events = calendar.call("list_events", day=day)["structuredContent"]["events"]
    taken = {event["hour"] for event in events}
    free = [hour for hour in range(9, 17) if hour not in taken]
    if not free:
        raise RuntimeError(f"there is no free hour on {day}; choose another day")
    calendar.call("add_event", day=day, hour=free[0], title=title)
    return f"planned {title} on {day} at {free[0]}:00"


def call(day, title):
    try:
        return text(plan_meeting(day, title))
    except RuntimeError as error:
        # The model reads why, and the user is told.
        return text(f"nothing was planned: {error}", error=True)


serve("scheduling", [(PLAN_MEETING, call)])
