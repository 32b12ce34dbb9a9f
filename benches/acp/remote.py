#!/usr/bin/env python3
"""Measures `skein serve` beside `skein acp` on stdio and goose's server, and writes the figures as a table.

- CPU of a long stream for one client: `skein serve` over WebSocket, `skein acp` on stdio, and the peer
- time of a prompt over loopback WebSocket and on stdio, asked in turn
- memory of the server with a growing number of clients, each with one session, and after all have left
- many paced streams at once, over WebSocket and over HTTP: CPU, gaps between the deltas of each client

Any error ends the run, and a goal that is missed makes it fail in the end. Standard library only; needs Linux for
/proc.
"""

import argparse
import asyncio
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from pathlib import Path

import model
from client import Agent, ProcessTree
from compare import figure, processor, version, write
from remote_client import HttpClient, WebSocketClient

BEGIN, END = "<!-- serve: written by scripts/bench --serve -->\n", "<!-- serve: end -->\n"
FLAGS = ["--agent", "goose", "--mode", "assistant", "--approval", "auto", "--model", "openai:gpt-4o"]
WARM_UP = 5
# How many clients connect and prompt at the same time.
BATCH = 50


class Server(ProcessTree):
    """A running server: its address, and the headers that a client needs."""

    def __init__(self, command, env, cwd, headers):
        self.process = subprocess.Popen(command, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.cwd, self.headers = str(cwd), headers

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    async def client(self, kind=WebSocketClient):
        """A client with a session."""
        client = kind(self.address, self.headers)
        await client.start()
        await client.session(self.cwd)
        return client

    async def clients(self, count, kind=WebSocketClient):
        """So many clients with a session each."""
        found = []
        while len(found) < count:
            found += await asyncio.gather(*(self.client(kind) for _ in range(min(BATCH, count - len(found)))))
        return found


class SkeinServer(Server):
    def __init__(self, skein, home, port):
        env, cwd = surroundings(home, {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": "none"})
        create = [skein, "token", "create", "--name", "bench", "--root", str(cwd)]
        printed = subprocess.run(create, env=env, cwd=cwd, capture_output=True, text=True, check=True)
        headers = [f"Authorization: Bearer {printed.stdout.split()[-1]}"]
        super().__init__([skein, "serve", "--listen", "127.0.0.1:0", *FLAGS], env, cwd, headers)
        self.address = ("127.0.0.1", int(self.process.stdout.readline().rsplit(b":", 1)[1]))

    async def wait_for_sessions(self, count):
        """Waits until the server has so many open sessions."""
        name, value = self.headers[0].split(": ", 1)
        request = urllib.request.Request(f"http://{self.address[0]}:{self.address[1]}/metrics", headers={name: value})
        for _ in range(600):
            text = await asyncio.to_thread(lambda: urllib.request.urlopen(request).read().decode())
            lines = [line for line in text.splitlines() if line.startswith("skein_sessions{")]
            if sum(int(line.split()[-1]) for line in lines) == count:
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"the server does not come to {count} sessions")


class GooseServer(Server):
    def __init__(self, goose, home, port):
        # As benches/acp/compare.py has it.
        settings = {"GOOSE_PROVIDER": "openai", "GOOSE_MODEL": "gpt-4o", "OPENAI_HOST": f"http://127.0.0.1:{port}"}
        settings |= {"OPENAI_API_KEY": "none", "GOOSE_DISABLE_KEYRING": "1", "GOOSE_TELEMETRY_ENABLED": "false"}
        env, cwd = surroundings(home, settings | {"GOOSE_SERVER__SECRET_KEY": "bench", "GOOSE_MODE": "auto"})
        self.address = ("127.0.0.1", free_port())
        super().__init__([goose, "serve", "--port", str(self.address[1])], env, cwd, ["X-Secret-Key: bench"])
        wait_for_port(self.address)


def surroundings(home, more):
    """The environment and the working directory of a program with this home."""
    cwd = Path(home, "project")
    cwd.mkdir(parents=True)
    return {"PATH": os.environ["PATH"], "HOME": str(home), "SHELL": "/bin/bash"} | more, cwd


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def wait_for_port(address):
    for _ in range(300):
        try:
            return socket.create_connection(address).close()
        except ConnectionError:
            time.sleep(0.1)
    raise TimeoutError("the peer does not listen")


async def prompt_all(clients):
    """One turn for each client, some at a time."""
    for at in range(0, len(clients), BATCH):
        await asyncio.gather(*(client.prompt("bench:say") for client in clients[at : at + BATCH]))


def per_session(memories, few, many):
    """KiB that each session between two counts takes."""
    return 1024 * (memories[many] - memories[few]) / (many - few)


class Bench:
    """All measurements of one run."""

    def __init__(self, options, port, folder):
        self.options, self.port, self.folder, self.found = options, port, Path(folder), {}
        self.begun = time.monotonic()

    def skein(self, name):
        return SkeinServer(os.path.abspath(self.options.skein), self.folder / name, self.port)

    def goose(self, name):
        return GooseServer(os.path.abspath(self.options.goose), self.folder / name, self.port)

    def stdio(self):
        env, cwd = surroundings(self.folder / "stdio", {"OPENAI_API_KEY": "none"})
        env["OPENAI_BASE_URL"] = f"http://127.0.0.1:{self.port}/v1"
        return Agent([os.path.abspath(self.options.skein), "acp", *FLAGS], env, str(cwd)), str(cwd)

    async def run(self):
        agent, cwd = self.stdio()
        with agent, self.skein("one") as server:
            session, _ = agent.session(cwd)
            client = await server.client()
            await self.prompts(agent, session, client)
            await self.burst(agent, session, server, client)
            await client.close()
        if self.options.goose:
            with self.goose("peer-one") as server:
                client = await server.client()
                self.note(peer_cpu=await self.streams(server, client))
                await client.close()
        with self.skein("many") as server:
            await self.memory(server)
        for name, kind in (("websocket", WebSocketClient), ("http", HttpClient)):
            with self.skein(f"paced-{name}") as server:
                self.note(**{name: await self.paced(server, self.options.streams, kind)})
        if self.options.goose:
            with self.goose("peer-paced") as server:
                self.note(peer_paced=await self.paced(server, self.options.peer_streams, WebSocketClient))
        return self.found

    async def prompts(self, agent, session, client):
        """The time of a prompt on both ways, asked in turn."""
        stdio, remote = [], []
        for number in range(WARM_UP + self.options.prompts):
            if number % 2:
                remote.append(await client.prompt("bench:say"))
            stdio.append(agent.prompt(session, "bench:say")[1])
            if not number % 2:
                remote.append(await client.prompt("bench:say"))
        pairs = list(zip(remote, stdio))[WARM_UP:]
        self.note(prompt_remote=1e3 * statistics.median(remote[WARM_UP:]), prompt_stdio=1e3 * statistics.median(stdio[WARM_UP:]))
        self.note(prompt_ratio=statistics.median(one / other for one, other in pairs))

    async def burst(self, agent, session, server, client):
        """CPU for each delta of a long stream: on stdio, and over WebSocket."""
        deltas, ours = self.options.deltas, []
        agent.prompt(session, f"bench:stream:{deltas}")
        for _ in range(self.options.rounds):
            before = agent.cpu()
            _, _, said = agent.prompt(session, f"bench:stream:{deltas}")
            assert said == "word " * deltas, "the stream did not arrive whole"
            ours.append(1e6 * (agent.cpu() - before) / deltas)
        self.note(stdio_cpu=statistics.median(ours), remote_cpu=await self.streams(server, client))

    async def streams(self, server, client):
        """Microseconds of CPU for each delta over WebSocket."""
        deltas, found = self.options.deltas, []
        await client.prompt(f"bench:stream:{deltas}", deltas)
        for _ in range(self.options.rounds):
            before = server.cpu()
            await client.prompt(f"bench:stream:{deltas}", deltas)
            found.append(1e6 * (server.cpu() - before) / deltas)
        return statistics.median(found)

    async def memory(self, server):
        """MiB with so many clients, each with a session that had a turn, and after all have left."""
        clients, memories = [], {}
        for count in self.options.clients:
            added = await server.clients(count - len(clients))
            await prompt_all(added)
            clients += added
            # What a turn needs only while it runs is gone after a while.
            await asyncio.sleep(self.options.settle)
            memories[count] = server.memory()
            print(count, "clients", round(memories[count], 1), "MiB", file=sys.stderr)
        await asyncio.gather(*(client.close() for client in clients))
        await server.wait_for_sessions(0)
        await asyncio.sleep(self.options.settle)
        first, last = self.options.clients[0], self.options.clients[-1]
        stored = 1024 * (server.memory() - memories[first]) / last
        self.note(memories=memories, stored=stored)

    async def paced(self, server, count, kind):
        """CPU for each delta of many paced streams, and the gaps between the deltas of each client in milliseconds."""
        deltas, pace = self.options.paced_deltas, self.options.pace
        clients = await server.clients(count, kind)
        # The first prompt of a session costs more.
        await prompt_all(clients)
        prompts = asyncio.gather(*(client.prompt(f"bench:pace:{deltas}:{pace}", deltas) for client in clients))
        measurement = asyncio.create_task(self.steady_cpu(server, clients))
        await prompts
        cpu = await measurement
        gaps = sorted(1e3 * statistics.quantiles(client.gaps(), n=100, method="inclusive")[98] for client in clients)
        await asyncio.gather(*(client.close() for client in clients))
        return {"cpu": cpu, "median": statistics.median(gaps), "slowest": gaps[-1], "streams": count}

    async def steady_cpu(self, server, clients):
        """Microseconds of CPU for each delta while all streams run, without their beginnings and ends."""
        deltas = self.options.paced_deltas
        sample = lambda: (server.cpu(), sum(client.words for client in clients))
        while min(client.words for client in clients) < 1:
            await asyncio.sleep(0.05)
        first = last = sample()
        while max(client.words for client in clients) < deltas - 1:
            last = sample()
            await asyncio.sleep(0.1)
        arrived = last[1] - first[1]
        if arrived < deltas * len(clients) / 4:
            raise RuntimeError("the streams did not run at the same time: this machine needs more --paced-deltas")
        return 1e6 * (last[0] - first[0]) / arrived

    def note(self, **figures):
        self.found |= figures
        print(f"after {time.monotonic() - self.begun:.0f} s:", figures, file=sys.stderr)


class Row:
    """A row of the table: what was measured, the figure, what it is compared with, the ratio and its goal."""

    def __init__(self, words, ours, unit, other=None, goal=None, ratio=None):
        self.words, self.ours, self.unit, self.other, self.goal = words, ours, unit, other, goal
        self.ratio = ours / other if other and ratio is None else ratio

    def is_missed(self):
        return self.goal is not None and self.ratio > self.goal

    def __str__(self):
        ours = figure(self.ours, self.unit)
        if self.goal is None:
            return f"| {self.words} | {ours} | – | – | – |"
        mark = "**" if self.is_missed() else ""
        wanted = f"≤ {self.goal:.2g}" if self.goal >= 1 else f"≤ 1/{round(1 / self.goal)}"
        # Two digits could hide that a goal is missed.
        ratio = f"{mark}{self.ratio:.3f}{mark}"
        return f"| {self.words} | {ours} | {figure(self.other, self.unit)} | {ratio} | {wanted} |"


def rows(found, options):
    """The rows of the table."""
    memories, counts = found["memories"], options.clients
    yield Row("CPU for each delta, compared with stdio", found["remote_cpu"], "µs", found["stdio_cpu"], 1.5)
    if "peer_cpu" in found:
        yield Row("CPU for each delta, compared with goose", found["remote_cpu"], "µs", found["peer_cpu"], 1 / 5)
        paced, peer = found["websocket"], found["peer_paced"]
        words = f"CPU for each delta of {paced['streams']:,} paced streams, compared with goose with {peer['streams']:,}"
        yield Row(words, paced["cpu"], "µs", peer["cpu"], 1 / 5)
    words = "time of a prompt over WebSocket, compared with stdio"
    yield Row(words, found["prompt_remote"], "ms", found["prompt_stdio"], 1.3, found["prompt_ratio"])
    for count in counts:
        yield Row(f"memory with {count:,} client{'s' * (count > 1)}", memories[count], "MiB")
    if len(counts) >= 4:
        few, some, many = counts[-3:]
        words = f"memory of a session from {some:,} to {many:,} clients, compared with {few:,} to {some:,}"
        yield Row(words, per_session(memories, some, many), "KiB", per_session(memories, few, some), 1.1)
        yield Row("memory of an idle session with a connection", per_session(memories, some, many), "KiB", 128, 1)
    yield Row("memory of an idle session without a connection", found["stored"], "KiB", 64, 1)
    for name, words in (("websocket", "WebSocket"), ("http", "HTTP")):
        one = found[name]
        words = f"p99 of the gaps of the slowest of {one['streams']:,} clients over {words}, compared with the median"
        yield Row(words, one["slowest"], "ms", one["median"], 3)


def report(table, options, loads):
    peer = f" and goose {version([options.goose])}" if options.goose else ""
    conditions = (
        f"skein {version([options.skein])}{peer} in one run. {options.rounds} streams of {options.deltas:,} deltas, "
        f"{options.prompts} prompts, paced streams of {options.paced_deltas} deltas every {options.pace} ms. "
        f"{os.cpu_count()} cores ({processor()}), load average {loads[0]:.1f} before and {loads[1]:.1f} after."
    )
    head = "\n\n| | skein serve | compared with | ratio | goal |\n|---|---|---|---|---|\n"
    # An error would have ended the run.
    return textwrap.fill(conditions, 100) + head + "".join(f"{row}\n" for row in table) + "| errors | 0 | – | – | 0 |\n"


def parse():
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skein", required=True, help="the program")
    parser.add_argument("--goose", help="the peer; left out if it is not given")
    parser.add_argument("--clients", type=numbers, default=[1, 100, 1_000, 5_000], help="numbers of clients, in order")
    parser.add_argument("--streams", type=int, default=1_000, help="paced streams")
    parser.add_argument("--peer-streams", type=int, default=100, help="paced streams of the peer")
    parser.add_argument("--paced-deltas", type=int, default=40, help="deltas in a paced stream")
    parser.add_argument("--pace", type=int, default=500, help="milliseconds between them")
    parser.add_argument("--deltas", type=int, default=20_000, help="deltas in a long stream")
    parser.add_argument("--rounds", type=int, default=5, help="long streams")
    parser.add_argument("--prompts", type=int, default=200, help="prompts for their time")
    parser.add_argument("--settle", type=float, default=3, help="seconds before the memory is measured")
    parser.add_argument("--write", help="the Markdown file with the markers between which the table goes")
    parser.add_argument("--raw", help="a file for all figures, as JSON")
    return parser.parse_args()


def main():
    options = parse()
    # Each client has up to three sockets here, and as many in the server, which inherits the limit.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    needed = 3 * max(*options.clients, options.streams) + 500
    if most != resource.RLIM_INFINITY and most < needed:
        sys.exit(f"this process may open {most} files and needs {needed}: raise the limit with `ulimit -Hn`")
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="serve-") as folder, model.serve() as port:
        found = asyncio.run(Bench(options, port, folder).run())
    loads.append(os.getloadavg()[0])
    table = list(rows(found, options))
    text = report(table, options, loads)
    print(text)
    if options.raw:
        Path(options.raw).write_text(json.dumps(found, indent=1) + "\n")
    if options.write:
        write(options.write, BEGIN, END, text)
    if missed := [row.words for row in table if row.is_missed()]:
        sys.exit("goals that are missed:\n" + "\n".join(f"  {words}" for words in missed))


if __name__ == "__main__":
    main()
