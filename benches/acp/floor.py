#!/usr/bin/env python3
"""Measures `skein acp` beside the least that its work takes, and writes the figures as a table.

- CPU for each delta of a long stream, beside a program that only reads the events and writes lines of JSON
- memory with many idle sessions: opened, and after one turn each

Both programs get the same streams in turn. Standard library only; needs Linux for /proc.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import model
from client import Agent
from compare import figure, processor, version, write

BEGIN, END = "<!-- floor: written by scripts/bench --floor -->\n", "<!-- floor: end -->\n"
FLAGS = ["acp", "--agent", "goose", "--mode", "assistant", "--approval", "auto", "--model", "openai:gpt-4o"]
DELTAS = 20_000
# The greatest CPU time of a delta, as a multiple of the bare path, and the greatest memory with idle sessions in MiB.
CPU_GOAL, MEMORY_GOAL = 4, 100
# How many sessions prompt at the same time.
BATCH = 50


class Program:
    """A running program with one session."""

    def __init__(self, command, folder, port):
        cwd = Path(folder, "project")
        cwd.mkdir(parents=True)
        env = {"PATH": os.environ["PATH"], "HOME": str(folder), "SHELL": "/bin/bash"}
        env |= {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": "none"}
        self.agent, self.cwd, self.cpu = Agent(command, env, str(cwd)), str(cwd), []

    def __enter__(self):
        self.agent.__enter__()
        self.session, _ = self.agent.session(self.cwd)
        return self

    def __exit__(self, *ended):
        self.agent.__exit__(*ended)

    def stream(self, count):
        """Notes the microseconds of CPU for each delta of so many streams."""
        before = self.agent.cpu()
        for _ in range(count):
            _, _, said = self.agent.prompt(self.session, f"bench:stream:{DELTAS}")
            assert said == "word " * DELTAS, "the stream did not arrive whole"
        # The kernel counts in hundredths of a second, so that one stream is too short.
        self.cpu.append(1e6 * (self.agent.cpu() - before) / (count * DELTAS))


def measure_streams(options, port, folder):
    """Microseconds of CPU for each delta in every round, of Skein and of the bare path."""
    skein = Program([os.path.abspath(options.skein), *FLAGS], folder / "skein", port)
    bare = Program([os.path.abspath(options.bare)], folder / "bare", port)
    with skein, bare:
        for program in (skein, bare):
            program.stream(1)
            program.cpu.clear()
        for number in range(options.rounds):
            for program in (skein, bare) if number % 2 else (bare, skein):
                program.stream(options.streams)
            print(number + 1, {"skein": skein.cpu[-1], "bare": bare.cpu[-1]}, file=sys.stderr)
    return {"skein_cpu": skein.cpu, "bare_cpu": bare.cpu}


def measure_sessions(options, port, folder):
    """MiB with so many sessions, before and after one turn each."""
    skein = Program([os.path.abspath(options.skein), *FLAGS], folder / "idle", port)
    with skein:
        agent, sessions, opened = skein.agent, [skein.session], {}
        for count in sorted({1, options.sessions // 10, options.sessions}):
            while len(sessions) < count:
                sessions.append(agent.session(skein.cwd)[0])
            time.sleep(options.settle)
            opened[count] = agent.memory()
            print(count, "sessions", round(opened[count], 1), "MiB", file=sys.stderr)
        prompt = [{"type": "text", "text": "bench:say"}]
        for at in range(0, len(sessions), BATCH):
            batch = sessions[at : at + BATCH]
            asked = [agent.ask("session/prompt", sessionId=session, prompt=prompt) for session in batch]
            for request, _ in asked:
                agent.answer(request)
            agent.lines.clear()
        # What a turn needs only while it runs is gone after a while.
        time.sleep(options.settle)
        return {"opened": opened, "after_turn": agent.memory()}


def rows(found, options):
    skein, bare = (statistics.median(found[key]) for key in ("skein_cpu", "bare_cpu"))
    ratio = statistics.median(one / other for one, other in zip(found["skein_cpu"], found["bare_cpu"]))
    yield f"CPU for each of {DELTAS:,} deltas, bare path", f"{bare:.2f} µs", "–"
    yield f"CPU for each of {DELTAS:,} deltas, `skein acp`", f"{skein:.2f} µs", "–"
    yield "ratio of the two", marked(f"{ratio:.1f}", ratio > CPU_GOAL), f"≤ {CPU_GOAL}"
    for count, memory in found["opened"].items():
        last = count == options.sessions
        goal = f"< {MEMORY_GOAL} MiB" if last else "–"
        words = f"memory with {count:,} idle session{'s' if count > 1 else ''}"
        yield words, marked(figure(memory, "MiB"), last and memory >= MEMORY_GOAL), goal
    memory = found["after_turn"]
    words = f"memory with {options.sessions:,} idle sessions after one turn each"
    yield words, marked(figure(memory, "MiB"), memory >= MEMORY_GOAL), f"< {MEMORY_GOAL} MiB"
    if options.sessions > 1:
        each = 1024 * (found["opened"][options.sessions] - found["opened"][1]) / (options.sessions - 1)
        yield "memory of each further session", figure(each, "KiB"), "–"


def marked(text, misses):
    return f"**{text}**" if misses else text


def report(found, options, loads):
    conditions = (
        f"skein {version([options.skein])}, medians of {options.rounds} × {options.streams} streams; {os.cpu_count()} cores "
        f"({processor()}), load average {loads[0]:.1f} before and {loads[1]:.1f} after."
    )
    table = "".join(f"| {words} | {value} | {goal} |\n" for words, value, goal in rows(found, options))
    return textwrap.fill(conditions, 100) + "\n\n| | | goal |\n|---|---|---|\n" + table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skein", required=True, help="the program")
    parser.add_argument("--bare", required=True, help="skein-bare-stream")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of the stream")
    parser.add_argument("--streams", type=int, default=10, help="streams in each of them")
    parser.add_argument("--sessions", type=int, default=1_000, help="idle sessions")
    parser.add_argument("--settle", type=float, default=3, help="seconds before the memory is measured")
    parser.add_argument("--write", help="the Markdown file with the markers between which the table goes")
    parser.add_argument("--raw", help="a file for all figures, as JSON")
    options = parser.parse_args()
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="floor-") as folder, model.serve() as port:
        found = measure_streams(options, port, Path(folder)) | measure_sessions(options, port, Path(folder))
    loads.append(os.getloadavg()[0])
    table = report(found, options, loads)
    print(table)
    if options.raw:
        Path(options.raw).write_text(json.dumps(found, indent=1) + "\n")
    if options.write:
        write(options.write, BEGIN, END, table)


if __name__ == "__main__":
    main()
