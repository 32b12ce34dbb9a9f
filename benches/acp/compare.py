#!/usr/bin/env python3
"""Measures `skein acp` and goose in turn, and writes the medians and their ratios as a table.

Every round measures each agent once with a fresh home, and the order changes from round to round, so that what else
the machine does falls on both. Standard library only; needs Linux for /proc.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import urllib.request
from pathlib import Path

import model
import plot
from client import Agent

HERE = Path(__file__).parent
SESSIONS, DELTAS, LATER = 20, 20_000, 10
BEGIN, END = "<!-- bench: written by scripts/bench -->\n", "<!-- bench: end -->\n"

# What is measured: key, words for the table, unit, the greatest ratio skein / goose that is the goal.
MEASURES = [
    ("start", "start → initialize", "ms", 1 / 3),
    ("new_first", "session/new, first", "ms", 1 / 20),
    ("new_last", f"session/new, {SESSIONS}th", "ms", 1 / 20),
    ("chunk_first", "prompt → first chunk, first prompt", "ms", 1 / 20),
    ("chunk_later", "prompt → first chunk, later prompts", "ms", 1 / 10),
    ("tool", "later prompt with one shell call, total", "ms", None),
    ("tool_plain", "the same, Skein without its sandbox", "ms", 1 / 4),
    ("together", f"{SESSIONS} first prompts at once, until the last ends", "ms", 1 / 20),
    ("stream_time", f"{DELTAS:,} deltas, total time", "ms", None),
    ("stream_cpu", f"{DELTAS:,} deltas, CPU time", "ms", 1 / 10),
    ("stream_memory", f"memory after {DELTAS:,} deltas", "MiB", 1 / 4),
    ("memory_1", "memory with 1 session", "MiB", 1 / 4),
    ("memory_20", f"memory with {SESSIONS} sessions", "MiB", 1 / 4),
    ("mcp_time", f"{SESSIONS} × session/new with one stdio MCP server", "ms", None),
    ("mcp_servers", f"server processes for {SESSIONS} sessions", "", 1 / SESSIONS),
    ("mcp_memory", f"memory with {SESSIONS} sessions and servers", "MiB", 1 / 4),
    ("request", "first model request", "bytes", None),
    ("tools", "tools in the first model request", "", None),
]


class Contender:
    """An agent that is measured: how it is started, also without a sandbox, and what came out in each round."""

    def __init__(self, name, command, env, plain=()):
        self.name, self.command, self.env, self.plain, self.rounds = name, command, env, plain, []

    def measure(self, port):
        with tempfile.TemporaryDirectory(prefix="bench-") as home:
            self.home, self.cwd, self.port = home, os.path.join(home, "project"), port
            os.mkdir(self.cwd)
            with self.agent():  # The first start in a home writes files that the others find.
                pass
            found = self.starts() | self.one_session() | self.without_sandbox() | self.many_sessions() | self.with_servers()
        self.rounds.append(found)
        return found

    def agent(self, *flags):
        env = {"PATH": os.environ["PATH"], "HOME": self.home, "SHELL": "/bin/bash"}
        env |= {name: value.replace("{PORT}", str(self.port)) for name, value in self.env.items()}
        return Agent([*self.command, *flags], env, self.cwd)

    def starts(self):
        def start():
            with self.agent() as agent:
                return agent.started

        return {"start": 1e3 * statistics.median(start() for _ in range(5))}

    def one_session(self):
        with self.agent() as agent:
            session, new = agent.session(self.cwd)
            memory = agent.memory()
            first, _, said = agent.prompt(session, "bench:say")
            assert said == "hello", said
            size = last_request(self.port)
            later = [agent.prompt(session, "bench:say")[0] for _ in range(LATER)]
            tool = call_tools(agent, session)
            before = agent.cpu()
            _, whole, said = agent.prompt(session, f"bench:stream:{DELTAS}")
            assert said == "word " * DELTAS, "the stream did not arrive whole"
            return {
                "new_first": 1e3 * new,
                "memory_1": memory,
                "chunk_first": 1e3 * first,
                "chunk_later": 1e3 * statistics.median(later),
                "tool": tool,
                "stream_time": 1e3 * whole,
                "stream_cpu": 1e3 * (agent.cpu() - before),
                "stream_memory": agent.memory(),
                "request": size["bytes"],
                "tools": size["tools"],
            }

    def without_sandbox(self):
        with self.agent(*self.plain) as agent:
            session, _ = agent.session(self.cwd)
            for _ in range(LATER):
                agent.prompt(session, "bench:say")
            return {"tool_plain": call_tools(agent, session)}

    def many_sessions(self):
        with self.agent() as agent:
            opened = [agent.session(self.cwd) for _ in range(SESSIONS)]
            memory = agent.memory()
            prompt = [{"type": "text", "text": "bench:say"}]
            asked = [agent.ask("session/prompt", sessionId=session, prompt=prompt) for session, _ in opened]
            ended = max(agent.answer(request)[0] for request, _ in asked)
        return {"new_last": 1e3 * opened[-1][1], "memory_20": memory, "together": 1e3 * (ended - asked[0][1])}

    def with_servers(self):
        server = {"name": "bench", "command": sys.executable, "args": [str(HERE / "server.py")], "env": []}
        with self.agent() as agent:
            opened = [agent.session(self.cwd, [server]) for _ in range(SESSIONS)]
            for session, _ in opened:
                said = agent.prompt(session, "bench:tool:answer")[2]
                assert said.endswith("done"), said
            memory, servers = agent.memory(), agent.running("server.py")
        time = 1e3 * sum(seconds for _, seconds in opened)
        return {"mcp_time": time, "mcp_memory": memory, "mcp_servers": servers}


def call_tools(agent, session):
    """The median time of prompts with one shell call, in milliseconds."""
    prompts = [agent.prompt(session, "bench:tool") for _ in range(LATER)]
    assert all(said.endswith("done") for _, _, said in prompts), prompts
    return 1e3 * statistics.median(whole for _, whole, _ in prompts)


def last_request(port):
    """The bytes of the last request with tools, and the number of its tools."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/last") as answer:
        body = answer.read()
    return {"bytes": len(body), "tools": len(json.loads(body)["tools"])}


def rows(skein, goose):
    for key, words, unit, goal in MEASURES:
        ours, theirs = (statistics.median(found[key] for found in one.rounds) for one in (skein, goose))
        ratio = ours / theirs
        mark = "**" if goal and ratio > goal * 1.0001 else ""
        wanted = f"1/{round(1 / goal)}" if goal else "–"
        yield f"| {words} | {figure(ours, unit)} | {figure(theirs, unit)} | {mark}{part(ratio)}{mark} | {wanted} |"


def figure(value, unit):
    digits = 0 if value >= 100 or unit in ("", "bytes") else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}".strip()


def part(ratio):
    return f"1/{1 / ratio:.1f}" if ratio < 1 else f"{ratio:.2f}"


def version(command):
    printed = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=True)
    return printed.stdout.split()[-1]


def processor():
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def report(skein, goose, loads):
    conditions = (
        f"skein {version(skein.command)} and goose {version(goose.command)}, medians of {len(skein.rounds)} rounds; "
        f"{os.cpu_count()} cores ({processor()}), load average {loads[0]:.1f} before and {loads[1]:.1f} after."
    )
    # Markdown is wrapped at 100 columns.
    head = "\n\n| | skein | goose | skein / goose | goal |\n|---|---|---|---|---|\n"
    return textwrap.fill(conditions, 100) + head + "".join(row + "\n" for row in rows(skein, goose))


def write(path, begin, end, table):
    """Replaces what is between two markers of a file."""
    before, _, rest = Path(path).read_text().partition(begin)
    _, marker, after = rest.partition(end)
    if not marker:
        sys.exit(f"{path} has no place for the table: {begin.strip()} … {end.strip()}")
    Path(path).write_text(before + begin + table + end + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skein", required=True, help="the program")
    parser.add_argument("--goose", required=True, help="the program")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", help="the Markdown file with the markers between which the table goes")
    parser.add_argument("--raw", help="a file for the figures of every round, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(options, *(install(program, folder) for program in (options.skein, options.goose)))


def install(program, folder):
    """Copies a program as an installer does. How a file was written decides how the kernel caches it: a program starts a
    sixth slower from a file that a linker has just written."""
    return shutil.copy(program, folder)


def compare(options, skein, goose):
    """Measures both programs, and prints and writes the results."""
    acp = ["acp", "--agent", "goose", "--mode", "assistant", "--approval", "auto", "--model", "openai:gpt-4o"]
    url, key = "http://127.0.0.1:{PORT}", {"OPENAI_API_KEY": "none"}
    skein = Contender(
        "skein",
        [skein, *acp],
        {"OPENAI_BASE_URL": url + "/v1", **key},
        ["--sandbox", "off"],
    )
    goose = Contender(
        "goose",
        [goose, "acp"],
        {"GOOSE_PROVIDER": "openai", "GOOSE_MODEL": "gpt-4o", "OPENAI_HOST": url, **key}
        | {"GOOSE_DISABLE_KEYRING": "1", "GOOSE_TELEMETRY_ENABLED": "false"},
    )
    loads = [os.getloadavg()[0]]
    for number in range(options.rounds):
        for contender in (skein, goose) if number % 2 == 0 else (goose, skein):
            with model.serve() as port:
                found = contender.measure(port)
            print(number + 1, contender.name, {key: round(value, 1) for key, value in found.items()}, file=sys.stderr)
    loads.append(os.getloadavg()[0])
    table = report(skein, goose, loads)
    print(table)
    if options.raw:
        Path(options.raw).write_text(json.dumps({one.name: one.rounds for one in (skein, goose)}, indent=1) + "\n")
    if options.write:
        write(options.write, BEGIN, END, table)
        page = Path(options.write)
        (page.parent / "images" / "performance.svg").write_text(plot.draw(page.read_text()))


if __name__ == "__main__":
    main()
