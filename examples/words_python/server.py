"""An MCP server on stdio that counts words. It needs nothing but Python."""

import json
import sys

COUNT = {
    "name": "count",
    "description": "Count the words of a text",
    "inputSchema": {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    },
}


def count(arguments):
    words = len(arguments["text"].split())
    if words == 0:
        # An error is an answer, too: the model reads it and can do better.
        return {"content": [{"type": "text", "text": "there is no word in it; give a text"}], "isError": True}
    return {"content": [{"type": "text", "text": f"{words} word{'' if words == 1 else 's'}"}]}


def answer(method, params):
    if method == "initialize":
        server = {"name": "words", "version": "1.0.0"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        return {"tools": [COUNT]}
    if method == "tools/call" and params["name"] == "count":
        return count(params["arguments"])
    if method == "ping":
        return {}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue  # A notification wants no answer.
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    result = answer(message.get("method"), message.get("params", {}))
    if result is None:
        reply["error"] = {"code": -32601, "message": f"there is no {message.get('method')} here"}
    else:
        reply["result"] = result
    # Standard output carries the protocol alone, one message a line; standard error goes to Skein's log.
    print(json.dumps(reply), flush=True)
