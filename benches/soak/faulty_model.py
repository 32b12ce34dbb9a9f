#!/usr/bin/env python3
"""The scripted model of benches/acp/model.py with faults: an OpenAI-compatible server on a free port, which it prints.

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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "acp"))

from model import BEGIN, HEAD, MODELS, NAME, SAY, SIDE, WORD_DELTA, Model, answer, call, delta, end, event, whole  # noqa: E402

WORD = re.compile(r"(?:marker-(\d+)- )?soak:(say|shell|tool|delegate|pace)")
# The part of the answers that are faults. A prompt fails if Skein meets one five times in a row.
FAULT_RATE = 0.25
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


def say(text):
    return answer(delta({"content": text}))


class FaultyModel(Model):
    faults = {"cut": [], "slow": [], "malformed": [], "429": [], "500": []}

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
            asyncio.create_task(self.pace(20, 50))
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
