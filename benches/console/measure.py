#!/usr/bin/env python3
"""Measures the console in Chromium and writes the figures as a table. Exits with 1 if a goal is missed.

- first view: bytes over all connections, requests for each asset, hosts
- list of sessions: a store with many sessions beside one with few, loaded in turn
- transcript: a session with many events beside one with few, loaded in turn; memory of the tab
- updates: the time from the model to the screen beside the time to an ACP client of the same session

The stores hold copies of a session that was really held. Standard library, Chromium and playwright-core; needs Linux for
/proc.
"""

import argparse
import asyncio
import collections
import json
import os
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "acp"))

from client import ProcessTree  # noqa: E402
from compare import figure, processor, version, write  # noqa: E402
from model import Model, delta, end  # noqa: E402
from proxy import CountingProxy  # noqa: E402
from remote_client import CHUNK, UPDATE, WebSocketClient  # noqa: E402

BEGIN, END = "<!-- console: written by scripts/bench --console -->\n", "<!-- console: end -->\n"
FLAGS = ["--agent", "goose", "--mode", "assistant", "--approval", "auto", "--model", "openai:gpt-4o"]
WARM_UP = 3
PACE = 120
ASSETS = "/console/assets/"


class StampingModel(Model):
    """The scripted model. Each delta of a paced answer is a word of its own, and it notes when it sends what."""

    words, calls = {}, []

    def reply(self, head, body):
        answer = super().reply(head, body)
        if b'"tool_calls"' in answer:
            StampingModel.calls.append(time.time())
        return answer

    async def pace(self, count, milliseconds):
        for number in range(count):
            await asyncio.sleep(milliseconds / 1e3)
            StampingModel.words[number] = time.time()
            self.transport.write(delta({"content": f"w{number} "}))
        self.transport.write(end("stop"))


class StampingClient(WebSocketClient):
    """An ACP client that notes when words and calls arrive."""

    def __init__(self, address, headers):
        super().__init__(address, headers)
        self.seen, self.calls = {}, []

    def take(self, text):
        now = time.time()
        if UPDATE in text:
            if CHUNK in text:
                for number in re.findall(rb"w(\d+) ", text):
                    self.seen.setdefault(int(number), now)
            elif re.search(rb'"sessionUpdate"\s*:\s*"tool_call"', text):
                self.calls.append(now)
        super().take(text)


class ConsoleServer(ProcessTree):
    """`skein serve` in a home folder, with a token."""

    def __init__(self, skein, home, model_port):
        self.skein, self.home, self.cwd = skein, Path(home), Path(home, "project")
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "SHELL": "/bin/bash", "OPENAI_API_KEY": "none"}
        self.env["OPENAI_BASE_URL"] = f"http://127.0.0.1:{model_port}/v1"
        self.cwd.mkdir(parents=True)
        create = [skein, "token", "create", "--name", "bench", "--root", str(self.cwd)]
        printed = subprocess.run(create, env=self.env, cwd=self.cwd, capture_output=True, text=True, check=True)
        self.token = printed.stdout.split()[-1]

    def __enter__(self):
        command = [self.skein, "serve", "--listen", "127.0.0.1:0", *FLAGS]
        self.process = subprocess.Popen(
            command, env=self.env, cwd=self.cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.port = int(self.process.stdout.readline().rsplit(b":", 1)[1])
        self.origin = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    async def client(self):
        client = StampingClient(("127.0.0.1", self.port), [f"Authorization: Bearer {self.token}"])
        await client.start()
        await client.session(str(self.cwd))
        return client

    def store(self):
        found = list(self.home.rglob("sessions.db"))
        if len(found) != 1:
            sys.exit(f"the server has {len(found)} session stores instead of one")
        return found[0]


class Browser:
    """The Chromium of benches/console/browser.mjs."""

    def __init__(self, node, chromium):
        self.command = [node, str(HERE / "browser.mjs"), chromium]

    async def __aenter__(self):
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*self.command, stdin=pipe, stdout=pipe, limit=1 << 26)
        return self

    async def __aexit__(self, *_):
        self.process.stdin.close()
        await self.process.wait()

    async def ask(self, what, **rest):
        self.process.stdin.write(json.dumps({"what": what, **rest}).encode() + b"\n")
        line = await asyncio.wait_for(self.process.stdout.readline(), 300)
        if not line:
            sys.exit("the browser ended")
        answer = json.loads(line)
        if "error" in answer:
            sys.exit(f"{what}: {answer['error']}")
        return answer


async def hold_session(server):
    """Two turns of a session, one of them with a call."""
    client = await server.client()
    await client.prompt("bench:tool")
    await client.prompt("bench:say")
    await client.close()


def fill_store(path, sessions, events):
    """Copies the session of the store until there are so many, one of them with so many events. Returns its id."""
    with sqlite3.connect(path) as store:
        store.row_factory = sqlite3.Row
        (template,) = store.execute("SELECT * FROM session").fetchall()
        pattern = store.execute("SELECT * FROM event WHERE session = ? ORDER BY seq", [template["key"]]).fetchall()
        copy_session(store, template, pattern, 1, events)
        for number in range(2, sessions):
            copy_session(store, template, pattern, number, len(pattern))
        (count,) = store.execute("SELECT count(*) FROM session").fetchone()
        assert count == sessions, f"{count} sessions instead of {sessions}"
        (id,) = store.execute("SELECT id FROM session WHERE events = ?", [events]).fetchone()
    store.close()
    return id


def copy_session(store, template, pattern, number, events):
    # Ids are letters and digits, of which the last ones are random.
    new = {**template, "key": None, "id": template["id"][:-5] + f"{number:05d}", "events": events, "audited": 0}
    new["updated_at"] = template["updated_at"] - 1_000 * number
    key = insert(store, "session", new)
    for seq in range(1, events + 1):
        insert(store, "event", {**pattern[(seq - 1) % len(pattern)], "key": None, "session": key, "seq": seq})


def insert(store, table, row):
    names, places = ", ".join(row), ", ".join("?" * len(row))
    return store.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", list(row.values())).lastrowid


def tab_memory(found):
    """MiB of the processes of a tab (PSS)."""
    kib = 0
    for pid in found["renderers"]:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            kib += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return kib / 1024


class Bench:
    """All measurements of one run. `few` and `many` are the two servers."""

    def __init__(self, options, browser, few, many):
        self.options, self.browser, self.few, self.many, self.found = options, browser, few, many, {}

    def note(self, **figures):
        self.found |= figures
        print({name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}, file=sys.stderr)

    async def open(self, tab, server):
        await self.browser.ask("open", tab=tab, origin=server.origin, token=server.token)

    async def first_view(self):
        async with CountingProxy(self.many.port) as proxy:
            origin = f"http://127.0.0.1:{proxy.port}"
            await self.browser.ask("open", tab="first", origin=origin, token=self.many.token)
            hosts = (await self.browser.ask("close", tab="first"))["hosts"]
        assets = collections.Counter(path for path in proxy.paths if path.startswith(ASSETS))
        if len(assets) < 4:
            sys.exit(f"the first view asked for {dict(assets)}")
        self.note(first_bytes=proxy.transferred, assets=len(assets), asset_requests=max(assets.values()), hosts=len(hosts))

    async def load(self, name, rows, addresses):
        """Loads a page of each server in turn, and notes the medians."""
        times = {"few": [], "many": []}
        for number in range(WARM_UP + self.options.rounds):
            for tab in ("few", "many") if number % 2 == 0 else ("many", "few"):
                loaded = await self.browser.ask("load", tab=tab, address=addresses[tab], rows=rows)
                if not loaded["rows"]:
                    sys.exit(f"{addresses[tab]} shows nothing")
                if number >= WARM_UP:
                    times[tab].append(loaded["time"])
        self.note(**{f"{name}_{tab}": statistics.median(found) for tab, found in times.items()})

    async def loads(self):
        await self.open("few", self.few)
        await self.open("many", self.many)
        servers = {"few": self.few, "many": self.many}
        lists = {tab: f"{server.origin}/console/sessions" for tab, server in servers.items()}
        await self.load("list", "ul.rows > li", lists)
        transcripts = {tab: f"{lists[tab]}/{server.long_session}" for tab, server in servers.items()}
        await self.load("transcript", "#transcript .entry", transcripts)
        for tab in servers:
            await self.browser.ask("close", tab=tab)
        for number in range(self.options.tabs):
            for tab in servers if number % 2 == 0 else reversed(servers):
                await self.memory(tab, servers[tab], transcripts[tab])
        for tab in servers:
            self.note(**{f"memory_{tab}": statistics.median(self.found.pop(f"memories_{tab}"))})

    async def memory(self, tab, server, address):
        """The memory of a new browser that shows a transcript."""
        await self.open(tab, server)
        await self.browser.ask("load", tab=tab, address=address, rows="#transcript .entry")
        self.found.setdefault(f"memories_{tab}", []).append(tab_memory(await self.browser.ask("memory", tab=tab)))
        await self.browser.ask("close", tab=tab)

    async def updates(self):
        client = await self.many.client()
        await client.prompt("bench:say")
        await self.open("live", self.many)
        address = f"{self.many.origin}/console/sessions/{client.session_id}"
        await self.browser.ask("watch", tab="live", address=address)
        StampingModel.words, StampingModel.calls, client.seen, client.calls = {}, [], {}, []
        await client.prompt(f"bench:pace:{self.options.updates}:{PACE}")
        for _ in range(self.options.updates):
            await client.prompt("bench:tool")
            # The next update finds the page at rest.
            await asyncio.sleep(PACE / 1e3)
        stamps = await self.browser.ask("stamps", tab="live")
        await self.browser.ask("close", tab="live")
        await client.close()
        frame = statistics.median(stamps["frames"])
        shown = {int(number): moment for number, moment in stamps["words"].items()}
        words = [(StampingModel.words[number], client.seen[number], shown[number]) for number in StampingModel.words]
        counts = len(StampingModel.calls), len(client.calls), len(stamps["calls"])
        if len(set(counts)) != 1:
            sys.exit(f"{counts} calls: of the model, on the connection, on the screen")
        calls = list(zip(StampingModel.calls, client.calls, stamps["calls"]))
        self.note(frame=frame)
        for name, moments in (("word", words), ("call", calls)):
            connection = [1e3 * (arrived - sent) for sent, arrived, _ in moments]
            screen = [seen - 1e3 * sent for sent, _, seen in moments]
            ratios = [one / (other + frame) for one, other in zip(screen, connection)]
            self.note(**{f"{name}_connection": statistics.median(connection), f"{name}_screen": statistics.median(screen)})
            self.note(**{f"{name}_ratio": statistics.median(ratios)})


def rows(found, options):
    """The rows of the table: words, two figures, their ratio, the goal, and whether it is missed."""

    def row(words, one, other, value, goal, text):
        missed = value > goal
        mark = "**" if missed else ""
        return f"| {words} | {one} | {other} | {mark}{text}{mark} | {goal:,} |", missed

    def ratio(words, name, unit, goal):
        few, many = found[f"{name}_few"], found[f"{name}_many"]
        return row(words, figure(few, unit), figure(many, unit), many / few, goal, f"{many / few:.2f}")

    def update(words, name):
        one, other = (figure(found[f"{name}_{place}"], "ms") for place in ("connection", "screen"))
        return row(words, one, other, found[f"{name}_ratio"], 2, f"{found[f'{name}_ratio']:.2f}")

    size, requests, hosts = found["first_bytes"], found["asset_requests"], found["hosts"]
    return [
        [
            row("first view, bytes transferred", "–", "–", size, 100_000, f"{size:,}"),
            row(f"first view, requests for each of {found['assets']} assets", "–", "–", requests, 1, str(requests)),
            row("first view, hosts", "–", "–", hosts, 1, str(hosts)),
            ratio(f"list of sessions, {options.few_sessions:,} and {options.many_sessions:,}", "list", "ms", 1.5),
            ratio(f"transcript, {options.few_events:,} and {options.many_events:,} events", "transcript", "ms", 2),
            ratio("memory of the tab with this transcript", "memory", "MiB", 2),
        ],
        [update("a piece of text", "word"), update("a call of a tool", "call")],
    ]


def report(found, options, loads):
    conditions = (
        f"skein {version([options.skein])}, medians of {options.rounds} loads, {options.tabs} tabs and {options.updates} updates; "
        f"{os.cpu_count()} cores ({processor()}), load average {loads[0]:.1f} before and {loads[1]:.1f} after. "
        f"An animation frame took {found['frame']:.1f} ms."
    )
    first, second = rows(found, options)
    table = textwrap.fill(conditions, 100) + "\n\n| | few | many | found | goal |\n|---|---|---|---|---|\n"
    table += "".join(row + "\n" for row, _ in first)
    table += "\n| from the model to | an ACP connection | the screen | screen / (connection + frame) | goal |\n|---|---|---|---|---|\n"
    table += "".join(row + "\n" for row, _ in second)
    return table, [row for row, missed in first + second if missed]


async def measure(options, folder):
    loop = asyncio.get_running_loop()
    model = await loop.create_server(StampingModel, "127.0.0.1", 0)
    port = model.sockets[0].getsockname()[1]
    few, many = (ConsoleServer(os.path.abspath(options.skein), Path(folder, name), port) for name in ("few", "many"))
    for server, sessions, events in (
        (few, options.few_sessions, options.few_events),
        (many, options.many_sessions, options.many_events),
    ):
        with server:
            await hold_session(server)
        server.long_session = fill_store(server.store(), sessions, events)
        print(f"{sessions:,} sessions, one with {events:,} events", file=sys.stderr)
    async with Browser(options.node, options.chromium) as browser:
        with few, many:
            bench = Bench(options, browser, few, many)
            await bench.first_view()
            await bench.loads()
            await bench.updates()
    model.close()
    return bench.found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skein", required=True, help="the program")
    parser.add_argument("--chromium", required=True, help="the browser")
    parser.add_argument("--node", default="node", help="the program that drives the browser")
    parser.add_argument("--rounds", type=int, default=25, help="loads of each page")
    parser.add_argument("--tabs", type=int, default=3, help="tabs whose memory is measured")
    parser.add_argument("--updates", type=int, default=40, help="pieces of text, and calls")
    parser.add_argument("--few-sessions", type=int, default=100)
    parser.add_argument("--many-sessions", type=int, default=10_000)
    parser.add_argument("--few-events", type=int, default=500)
    parser.add_argument("--many-events", type=int, default=50_000)
    parser.add_argument("--write", help="the Markdown file with the markers between which the table goes")
    parser.add_argument("--raw", help="a file for all figures, as JSON")
    options = parser.parse_args()
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        found = asyncio.run(measure(options, folder))
    loads.append(os.getloadavg()[0])
    table, missed = report(found, options, loads)
    print(table)
    if options.raw:
        Path(options.raw).write_text(json.dumps(found, indent=1) + "\n")
    if options.write:
        write(options.write, BEGIN, END, table)
    if missed:
        sys.exit("a goal is missed:\n" + "\n".join(missed))


if __name__ == "__main__":
    main()
