"""A small MCP server on stdio with one tool, which agents are given for each of their sessions."""

import json
import sys

TOOL = {"name": "answer", "description": "The answer.", "inputSchema": {"type": "object", "properties": {}}}

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    match message["method"]:
        case "initialize":
            reply["result"] = {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "bench", "version": "1"},
            }
        case "tools/list":
            reply["result"] = {"tools": [TOOL]}
        case "tools/call":
            reply["result"] = {"content": [{"type": "text", "text": "42"}]}
        case "ping":
            reply["result"] = {}
        case method:
            reply["error"] = {"code": -32601, "message": f"no method {method}"}
    print(json.dumps(reply), flush=True)
