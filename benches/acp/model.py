#!/usr/bin/env python3
"""A model that costs nothing: an OpenAI-compatible server on a free port of 127.0.0.1, which it prints.

The last `bench:WORD` in a request says what the answer is, so there is no state and any number of sessions may ask at
once:

    bench:say               one delta
    bench:stream:20000      so many deltas, as fast as they are taken
    bench:pace:20:500       so many deltas, one every so many milliseconds
    bench:tool              one call of the offered tool whose name ends in "shell", then one delta
    bench:tool:NAME         the same with the offered tool whose name ends in NAME, called without arguments

Requests are searched as bytes and answers are made beforehand, because what this takes is measured with the agent.
`GET /last` is the size of the last request with tools in bytes, and the number of its tools.
"""

import asyncio
import json
import re

WORD = re.compile(rb"bench:(say|stream:\d+|pace:\d+:\d+|tool(?::\w+)?)")
NAME = re.compile(rb'"name"\s*:\s*"(\w+)"')
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def event(data):
    text = b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(text), text)


def delta(content, finish=None, **more):
    choice = {"index": 0, "delta": content, "finish_reason": finish}
    return event({"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]} | more)


def answer(*deltas, finish="stop"):
    return b"".join([HEAD, BEGIN, *deltas, end(finish)])


def end(finish):
    usage = event({"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": USAGE})
    return b"".join([delta({}, finish), usage, event(b"[DONE]"), b"0\r\n\r\n"])


def call(name, arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"index": 0, "id": "call_1", "type": "function", "function": function}]
    return answer(delta({"tool_calls": calls}), finish="tool_calls")


def whole(value):
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


BEGIN = delta({"role": "assistant", "content": ""})
WORD_DELTA = delta({"content": "word "})
SAY = answer(delta({"content": "hello"}))
DONE = answer(delta({"content": "done"}))
MESSAGE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "title"}}
SIDE = whole({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [MESSAGE], "usage": USAGE})
MODELS = whole({"object": "list", "data": [{"id": "gpt-4o", "object": "model", "created": 1, "owned_by": "bench"}]})
STREAMS = {}


class Model(asyncio.Protocol):
    last = b'{"tools": []}'

    def connection_made(self, transport):
        self.transport, self.buffer = transport, b""

    def data_received(self, data):
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", self.buffer[:end])
            size = end + 4 + (int(length[1]) if length else 0)
            if len(self.buffer) < size:
                return
            request, self.buffer = self.buffer[:size], self.buffer[size:]
            self.transport.write(self.reply(request[:end], request[end + 4 :]))

    def reply(self, head, body):
        if head.startswith(b"GET /last"):
            return whole({"bytes": len(Model.last), "tools": len(json.loads(Model.last)["tools"])})
        if head.startswith(b"GET"):
            return MODELS
        # Titles and summaries are asked for without tools.
        tools = body.rfind(b'"tools"')
        if tools < 0:
            return SIDE if not re.search(rb'"stream"\s*:\s*true', body) else SAY
        Model.last = body
        *_, word = WORD.finditer(body)
        what, _, rest = word[1].decode().partition(":")
        if what == "say":
            return SAY
        if what == "stream":
            return STREAMS.setdefault(rest, answer(*[WORD_DELTA] * int(rest)))
        if what == "pace":
            asyncio.create_task(self.pace(*map(int, rest.split(":"))))
            return HEAD + BEGIN
        # A result behind the prompt: the call was made.
        if re.search(rb'"role"\s*:\s*"tool"', body[word.end() :]):
            return DONE
        wanted = rest or "shell"
        name = next(n.decode() for n in NAME.findall(body) if n.decode().endswith(wanted))
        return call(name, {} if rest else {"command": "echo bench"})

    async def pace(self, count, milliseconds):
        """Sends one delta at a time. Each is due at a fixed time, so that a late one delays no other."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        for _ in range(count):
            due += milliseconds / 1e3
            await asyncio.sleep(due - loop.time())
            self.transport.write(WORD_DELTA)
        self.transport.write(end("stop"))


async def main():
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
