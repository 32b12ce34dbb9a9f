"""An MCP server on stdio with a small calendar. It needs nothing but Python."""

from mcp_server import serve, text

DAY = {"type": "string", "description": "A day, as in 2026-11-16", "pattern": r"^\d{4}-\d{2}-\d{2}$"}
HOUR = {"type": "integer", "description": "The hour at which it starts", "minimum": 0, "maximum": 23}
TITLE = {"type": "string", "description": "What it is about", "minLength": 1}

LIST_EVENTS = {
    "name": "list_events",
    "description": "List the events of a day",
    "inputSchema": {"type": "object", "properties": {"day": DAY}, "required": ["day"]},
}
ADD_EVENT = {
    "name": "add_event",
    "description": "Add an event of one hour",
    "inputSchema": {
        "type": "object",
        "properties": {"day": DAY, "hour": HOUR, "title": TITLE},
        "required": ["day", "hour", "title"],
    },
}

# One process serves all sessions, so all of them see the same events.
events = [{"day": "2026-11-16", "hour": 9, "title": "Dentist"}]


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


serve("calendar", [(LIST_EVENTS, list_events), (ADD_EVENT, add_event)])
