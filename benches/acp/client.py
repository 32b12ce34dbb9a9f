"""An ACP client that measures: one thread, no parsing while the clock runs, one clock for everything."""

import json
import os
import select
import subprocess
import time
from pathlib import Path


class ProcessTree:
    """A program with the processes below it; `process` is the program."""

    def tree(self):
        """The program's process and all below it."""
        below = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                below.setdefault(int(stat(name)[1]), []).append(int(name))
            except OSError:
                continue
        found = [self.process.pid]
        for pid in found:
            found += below.get(pid, [])
        return found

    def memory(self):
        """MiB of the tree, shared pages divided among those that share them (PSS)."""
        kib = 0
        for pid in self.tree():
            try:
                with open(f"/proc/{pid}/smaps_rollup") as file:
                    kib += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
            except (OSError, StopIteration):
                continue
        return kib / 1024

    def running(self, program):
        """How many processes of the tree have this in their command line."""
        found = 0
        for pid in self.tree():
            try:
                found += program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
        return found

    def cpu(self):
        """Seconds of CPU that the tree has used."""
        ticks = sum(int(field) for pid in self.tree() for field in stat(pid)[11:15])
        return ticks / os.sysconf("SC_CLK_TCK")


class Agent(ProcessTree):
    """A running agent. `lines` holds what it has said since the last request, as (time, line)."""

    def __init__(self, command, env, cwd):
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            command, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        self.out = self.process.stdout.fileno()
        self.ids, self.rest, self.lines, self.answers = 0, b"", [], {}

    def __enter__(self):
        capabilities = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        self.request("initialize", protocolVersion=1, clientCapabilities=capabilities)
        self.started = time.monotonic() - self.begun
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def write(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def read(self):
        """Takes what has come, or waits for more."""
        if not select.select([self.out], [], [], 120)[0]:
            raise TimeoutError("the agent says nothing for two minutes")
        data = os.read(self.out, 1 << 20)
        now = time.monotonic()
        if not data:
            raise EOFError(f"the agent ended: {self.process.wait()}")
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.lines.append((now, line))
            if b'"session/update"' not in line:
                self.take(now, json.loads(line))

    def take(self, now, message):
        if "method" not in message:
            self.answers[message["id"]] = (now, message)
        elif message["method"] == "session/request_permission":
            allow = next(o for o in message["params"]["options"] if o["kind"] == "allow_once")
            outcome = {"outcome": "selected", "optionId": allow["optionId"]}
            self.write({"id": message["id"], "result": {"outcome": outcome}})

    def ask(self, method, **params):
        """Sends a request: its id and the time."""
        self.ids += 1
        now = time.monotonic()
        self.write({"id": self.ids, "method": method, "params": params})
        return self.ids, now

    def answer(self, request):
        """The time of the answer and the result."""
        while request not in self.answers:
            self.read()
        now, message = self.answers.pop(request)
        if "error" in message:
            raise RuntimeError(message["error"])
        return now, message["result"]

    def request(self, method, **params):
        """The result of a request and the seconds it took."""
        self.lines.clear()
        request, sent = self.ask(method, **params)
        now, result = self.answer(request)
        return result, now - sent

    def session(self, cwd, servers=()):
        result, seconds = self.request("session/new", cwd=cwd, mcpServers=list(servers))
        return result["sessionId"], seconds

    def prompt(self, session, text):
        """Seconds to the first chunk of the answer, seconds to its end, and the text."""
        self.lines.clear()
        request, sent = self.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])
        ended, _ = self.answer(request)
        chunks = [(now, line) for now, line in self.lines if b'"agent_message_chunk"' in line]
        said = "".join(json.loads(line)["params"]["update"]["content"]["text"] for _, line in chunks)
        return chunks[0][0] - sent, ended - sent, said


def stat(pid):
    """The fields of /proc/PID/stat behind the name: state, parent, …"""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()
