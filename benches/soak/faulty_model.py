#!/usr/bin/env python3
"""The scripted model of benches/acp/model.py with faults: an OpenAI-compatible server on a free port, which it prints.

The last `soak:WORD` in a request says what the answer is:

    soak:say       one delta
    soak:shell     one call of the offered tool whose name ends in "shell", then one delta
    soak:tool      one call of a tool of the MCP servers, then one delta
    soak:delegate  one call of the tool that delegates a task, whose prompt is soak:say, then one delta
    soak:pace      twenty deltas, one every 50 milliseconds

Some of the answers are faults instead: `cut`, `slow`, `malformed`, `429` and `500`. `GET /faults` returns how often each
was sent.
"""

import asyncio
import logging
import random
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "acp"))

from model import BEGIN, DONE, HEAD, MODELS, NAME, SAY, SIDE, WORD_DELTA, Model, call, end, event, whole  # noqa: E402

WORD = re.compile(rb"soak:(say|shell|tool|delegate|pace)")
# The part of the answers that are faults. A prompt fails if Skein meets one five times in a row.
FAULT_RATE = 0.25
TASK = {"task": "Say one word: soak:say", "agent": "goose", "mode": "specialist"}
COMMAND = "echo begin; seq 1 2000 | tail -1; sleep 0.1; echo end"


class FaultyModel(Model):
    faults = {"cut": 0, "slow": 0, "malformed": 0, "429": 0, "500": 0}

    def reply(self, head, body):
        if head.startswith(b"GET /faults"):
            return whole(self.faults)
        if head.startswith(b"GET"):
            return MODELS
        # Titles and summaries are requested without tools.
        if body.rfind(b'"tools"') < 0:
            return SIDE if not re.search(rb'"stream"\s*:\s*true', body) else SAY
        if random.random() < FAULT_RATE:
            return self.fault(random.choice(list(self.faults)))
        words = list(WORD.finditer(body))
        if not words or words[-1][1] == b"say":
            return SAY
        if words[-1][1] == b"pace":
            asyncio.create_task(self.pace(20, 50))
            return HEAD + BEGIN
        # A result behind the prompt: the call was made.
        if re.search(rb'"role"\s*:\s*"tool"', body[words[-1].end() :]):
            return DONE
        names = {name.decode() for name in NAME.findall(body)}
        if words[-1][1] == b"shell":
            offered = [(name, {"command": COMMAND}) for name in names if name.endswith("__shell")]
        elif words[-1][1] == b"delegate":
            offered = [(name, TASK) for name in names if name.endswith("__delegate")]
        else:
            offered = [(name, {}) for name in names if name.endswith("__answer")]
            offered += [(name, {"message": "soak"}) for name in names if name.endswith("everything__echo")]
        return call(*random.choice(offered)) if offered else SAY

    def fault(self, kind):
        self.faults[kind] += 1
        if kind == "cut":
            asyncio.get_running_loop().call_later(0.02, self.transport.abort)
            return HEAD + BEGIN + WORD_DELTA
        if kind == "slow":
            asyncio.create_task(self.pace(3, 500))
            return HEAD + BEGIN
        if kind == "malformed":
            broken = random.choice([b"{]", b'{"choices": [{"delta": {"con', b"\xc3\x28", b'{"choices": 7}', b"null"])
            return HEAD + BEGIN + event(broken) + end("stop")
        more = b"Retry-After: 0\r\n" if kind == "429" else b""
        body = b'{"error": {"message": "a fault of the soak test"}}'
        head = b"HTTP/1.1 %s Fault\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n"
        return head % (kind.encode(), more, len(body)) + body


async def main():
    # A client that hangs up is part of the test.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    server = await asyncio.get_running_loop().create_server(FaultyModel, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
