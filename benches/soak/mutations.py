"""Lines of the Agent Client Protocol with mistakes in them, without end."""

import copy
import json
import random

WRONG = [None, True, -1, 1e308, 2**63, "", "\u0000", "../../etc/passwd", [], {}, [[[[]]]], {"": {"": {}}}, "x" * 5_000, "\ud800"]


# No session has this id.
UNKNOWN = "00000000-0000-0000-0000-000000000000"


def seeds(cwd, session=UNKNOWN):
    """Messages that are right. None of them opens another session that works for long."""
    prompt = [{"type": "text", "text": "hello soak:say"}, {"type": "resource_link", "uri": "file:///a", "name": "a"}]
    abilities = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
    requests = [
        ("initialize", {"protocolVersion": 1, "clientCapabilities": abilities}),
        ("session/new", {"cwd": f"{cwd}/missing", "mcpServers": []}),
        ("session/load", {"sessionId": session, "cwd": cwd, "mcpServers": []}),
        ("session/resume", {"sessionId": session, "cwd": cwd, "mcpServers": []}),
        ("session/list", {"cwd": cwd, "cursor": "1.a"}),
        ("session/prompt", {"sessionId": session, "prompt": prompt}),
        ("session/set_mode", {"sessionId": session, "modeId": "goose/assistant"}),
        ("session/set_config_option", {"sessionId": session, "configId": "model", "value": "offline"}),
        ("session/cancel", {"sessionId": session}),
        ("session/close", {"sessionId": session}),
        ("session/delete", {"sessionId": session}),
        # A fork of an open session would stay open.
        ("session/fork", {"sessionId": UNKNOWN, "cwd": cwd, "mcpServers": []}),
        ("authenticate", {"methodId": "none"}),
        ("$/cancel_request", {"requestId": 1}),
        ("_skein/unknown", {"any": "thing"}),
    ]
    return [
        {"jsonrpc": "2.0", "id": f"mutated-{number}", "method": method, "params": params}
        for number, (method, params) in enumerate(requests)
    ]


def places(value, found):
    """All containers of a value with a key of each entry."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    for key, inner in list(entries):
        found.append((value, key))
        places(inner, found)
    return found


def mutate(message):
    """One line, without its end, that is not quite the message."""
    message = json.loads(json.dumps(message))
    for _ in range(random.randint(0, 2)):
        container, key = random.choice(places(message, []))
        what = random.randrange(4)
        if what == 0:
            container[key] = copy.deepcopy(random.choice(WRONG))
        elif what == 1 and isinstance(container, dict):
            del container[key]
        elif what == 2 and isinstance(container, dict):
            container[str(key) + random.choice(["", "_", "é", " "])] = container.pop(key)
        else:
            container[key] = [copy.deepcopy(container[key]) for _ in range(random.randint(0, 3))]
        if not message:
            break
    line = bytearray(json.dumps(message).encode())
    what = random.randrange(8)
    if what == 0 and line:
        del line[random.randrange(len(line)) :]
    elif what == 1:
        for _ in range(random.randint(1, 8)):
            line[random.randrange(len(line))] = random.randrange(256)
    elif what == 2:
        line[random.randrange(len(line)) : 0] = random.randbytes(random.randint(1, 40))
    elif what == 3:
        line = bytearray(b"[" * random.choice([1, 100, 20_000])) + line
    return bytes(line.replace(b"\n", b" ").replace(b"\r", b" "))


def line(cwd):
    """One mutated line, which names no open session."""
    return mutate(random.choice(seeds(cwd)))


def line_for(session, cwd):
    """One mutated line for an open session, unless the mutation hits the id."""
    messages = seeds(cwd, session)
    return mutate(random.choice([message for message in messages if message["params"].get("sessionId") == session]))
