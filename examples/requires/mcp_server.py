"""The part of an MCP server on stdio that is the same for all tools. It needs nothing but Python."""

import json
import sys


def text(text, error=False):
    return {"content": [{"type": "text", "text": text}], "isError": error}


def serve(name, tools):
    """Answers requests until standard input ends. `tools` has each tool with the function that runs it."""
    functions = {tool["name"]: function for tool, function in tools}

    def answer(method, params):
        if method == "initialize":
            server = {"name": name, "version": "1.0.0"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
        if method == "tools/list":
            return {"tools": [tool for tool, _ in tools]}
        if method == "tools/call" and params["name"] in functions:
            return functions[params["name"]](**params["arguments"])
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
