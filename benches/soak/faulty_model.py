#!/usr/bin/env python3
"""A scripted model with faults: an OpenAI-compatible server on a free port, which it prints.

    faulty_model.py HIDDEN      a file that the sandbox of a shell command hides

The last `soak:WORD` in a request says what the answer is:

    soak:say       one delta
    soak:shell     one call of the offered tool whose name ends in "shell", then one delta
    soak:tool      one call of a tool of the MCP servers, then one delta
    soak:delegate  one call of the tool that delegates a task, whose prompt is soak:say, then one delta
    soak:pace      twenty deltas, one every 50 milliseconds

An answer repeats the number of the prompt: `marker-7- soak:say` is answered with `hello answer-7-`. The answer behind a
call is `done` and what the result must have. It is `wrong` with the result if the call failed, and `not offered` if there
is no such tool.

Some of the answers are faults instead: `cut`, `slow`, `malformed`, `429` and `500`. `GET /faults` returns the numbers of the
prompts that got each of them.
"""

import asyncio
import json
import logging
import random
import re
import shlex
import sys

WORD = re.compile(r"(?:marker-(\d+)- )?soak:(say|shell|tool|delegate|pace)")
# The part of the answers that are faults. A prompt fails if Skein meets one five times in a row.
FAULT_RATE = 0.25
NAME = re.compile(rb'"name"\s*:\s*"(\w+)"')
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
TASK = {"agent": "goose", "mode": "specialist"}
# Without a sandbox, the command reads the file.
COMMAND = "echo begin; seq 1 2000 | tail -1; sleep 0.1; cat {} >/dev/null 2>&1 && echo visible || echo hidden; echo end"
# Where Skein offers functions for code in place of many tools, it calls those of all servers.
CODE = """
const results = [];
if (typeof small !== "undefined") results.push(await small.answer({}));
if (typeof everything !== "undefined") results.push(await everything.echo({ message: "soak" }));
return results.join(" and ");
"""
# What the result of a call has if it succeeded.
RESULTS = {
    "shell": re.compile(r"begin\s+2000\s+(hidden|visible)\s+end"),
    "tool": re.compile(r"\b42\b( and Echo: soak)?|Echo: soak"),
    "delegate": re.compile(r"hello answer-"),
}


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
MESSAGE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "title"}}
SIDE = whole({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [MESSAGE], "usage": USAGE})
MODELS = whole({"object": "list", "data": [{"id": "gpt-4o", "object": "model", "created": 1, "owned_by": "bench"}]})


def say(text):
    return answer(delta({"content": text}))


class FaultyModel(asyncio.Protocol):
    faults = {"cut": [], "slow": [], "malformed": [], "429": [], "500": []}

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
        if head.startswith(b"GET /faults"):
            return whole(self.faults)
        if head.startswith(b"GET"):
            return MODELS
        # Titles and summaries are requested without tools.
        if body.rfind(b'"tools"') < 0:
            return SIDE if not re.search(rb'"stream"\s*:\s*true', body) else SAY
        prompt, results = self.last_prompt(json.loads(body)["messages"])
        if random.random() < FAULT_RATE:
            kind = random.choice(list(self.faults))
            self.faults[kind].append(int(prompt[1]) if prompt and prompt[1] else None)
            return self.fault(kind, lambda: self.answer(prompt, results, body))
        if prompt and prompt[2] == "pace":
            asyncio.create_task(self.pace())
            return HEAD + BEGIN
        return self.answer(prompt, results, body)

    def last_prompt(self, messages):
        """The last prompt with a WORD, and the results behind it."""
        prompt, results = None, []
        for message in messages:
            content = message.get("content") or ""
            text = content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
            if message["role"] == "user" and (words := list(WORD.finditer(text))):
                prompt, results = words[-1], []
            elif message["role"] == "tool":
                results.append(text)
        return prompt, results

    def answer(self, prompt, results, body):
        """The answer without a fault. That to `soak:pace` has one delta."""
        number = f" answer-{prompt[1]}-" if prompt and prompt[1] else ""
        kind = prompt[2] if prompt else "say"
        if kind in ("say", "pace"):
            return say(f"hello{number}")
        if results:
            found = RESULTS[kind].search(results[-1])
            verdict = " ".join(["done", *found[0].split()]) if found else f"wrong: {results[-1][:500]}"
            return say(verdict + number)
        names = {name.decode() for name in NAME.findall(body)}
        if kind == "shell":
            command = COMMAND.format(shlex.quote(sys.argv[1]))
            offered = [(name, {"command": command}) for name in names if name.endswith("__shell")]
        elif kind == "delegate":
            task = TASK | {"task": f"Say one word: marker-{prompt[1]}- soak:say"}
            offered = [(name, task) for name in names if name.endswith("__delegate")]
        else:
            offered = [(name, {}) for name in names if name.endswith("__answer")]
            offered += [(name, {"message": "soak"}) for name in names if name.endswith("everything__echo")]
            offered += [(name, {"code": CODE}) for name in names if name.endswith("__execute")]
        return call(*random.choice(offered)) if offered else say(f"not offered{number}")

    def fault(self, kind, answer):
        if kind == "cut":
            asyncio.get_running_loop().call_later(0.02, self.transport.abort)
            return HEAD + BEGIN + WORD_DELTA
        if kind == "slow":
            asyncio.create_task(self.delay(answer().removeprefix(HEAD + BEGIN)))
            return HEAD + BEGIN
        if kind == "malformed":
            broken = random.choice([b"{]", b'{"choices": [{"delta": {"con', b"\xc3\x28", b'{"choices": 7}', b"null"])
            return HEAD + BEGIN + event(broken) + end("stop")
        more = b"Retry-After: 0\r\n" if kind == "429" else b""
        body = b'{"error": {"message": "a fault of the soak test"}}'
        head = b"HTTP/1.1 %s Fault\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n"
        return head % (kind.encode(), more, len(body)) + body

    async def pace(self):
        """Sends twenty words, one every 50 milliseconds."""
        for _ in range(20):
            await asyncio.sleep(0.05)
            self.transport.write(WORD_DELTA)
        self.transport.write(end("stop"))

    async def delay(self, rest):
        """Sends three words, and then the answer."""
        for text in [WORD_DELTA] * 3 + [rest]:
            await asyncio.sleep(0.5)
            self.transport.write(text)


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
