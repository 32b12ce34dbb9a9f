#!/usr/bin/env python3
"""Measures the cost of a sandbox: `skein sandbox -- true`, `true` and two peers, and shell calls of a session.

All commands run in turn in one loop, so that whatever else the machine does hits all alike; medians are compared.
Standard library only; needs Linux.
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
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "acp"))
from client import Agent

BEGIN, END = "<!-- sandbox: written by scripts/bench --sandbox -->\n", "<!-- sandbox: end -->\n"
WARM_UP = 3
# The greatest ratios that are the goals.
OVERHEAD_GOAL, CALL_GOAL = 1 / 10, 1.3
CALL = '/developer.shell {"command": "true"}'


def starts(commands, rounds, home, environment):
    """Milliseconds of each run of each command."""
    quiet = subprocess.DEVNULL
    times = {name: [] for name in commands}
    for number in range(rounds + WARM_UP):
        for name, command in commands.items():
            begin = time.perf_counter()
            subprocess.run(command, cwd=home, env=environment, check=True, stdin=quiet, stdout=quiet, stderr=quiet)
            if number >= WARM_UP:
                times[name].append(1000 * (time.perf_counter() - begin))
    return times


def shell_calls(skein, rounds, calls, home, environment):
    """Milliseconds of the first call of a session and of later ones, without and with a sandbox."""
    found = {"off": {"first": [], "later": []}, "required": {"first": [], "later": []}}
    for _ in range(rounds):
        agents = {level: Agent([skein, "--sandbox", level, "acp", "--approval", "auto"], environment, home) for level in found}
        for agent in agents.values():
            agent.__enter__()
        sessions = {level: agent.session(home)[0] for level, agent in agents.items()}
        for number in range(calls):
            for level, agent in agents.items():
                _, seconds, said = agent.prompt(sessions[level], CALL)
                assert "exit 0" in said, said
                found[level]["later" if number else "first"].append(1000 * seconds)
        for agent in agents.values():
            agent.__exit__()
    return found


def span(values):
    low, *_, high = statistics.quantiles(values, n=10)
    return f"{statistics.median(values):.2f} ms | {low:.2f} to {high:.2f}"


def part(ratio):
    return f"1/{1 / ratio:.1f}" if ratio < 1 else f"{ratio:.2f}"


def bold(text, misses):
    return f"**{text}**" if misses else text


def start_table(times):
    base = statistics.median(times["true"])
    overheads = {name: statistics.median(values) - base for name, values in times.items() if name != "true"}
    ours, *peers = overheads.values()
    best = min(peers) if peers else None
    rows = ["| | median | p10 to p90 | overhead | of the better peer |", "|---|---|---|---|---|"]
    for name, values in times.items():
        if name == "true":
            rows.append(f"| `true` | {span(values)} | – | – |")
            continue
        overhead = overheads[name]
        ratio = "–" if best is None else bold(part(overhead / best), overhead == ours and overhead / best > OVERHEAD_GOAL)
        rows.append(f"| `{name}` | {span(values)} | {overhead:.2f} ms | {ratio} |")
    return rows


def call_table(calls):
    rows = ["| shell call of a session | without | with a sandbox | ratio | goal |", "|---|---|---|---|---|"]
    for key, words, goal in (("first", "first", None), ("later", "second and later", CALL_GOAL)):
        off, on = (statistics.median(calls[level][key]) for level in ("off", "required"))
        ratio = bold(f"{on / off:.2f}", goal is not None and on / off > goal)
        rows.append(f"| {words} | {off:.2f} ms | {on:.2f} ms | {ratio} | {goal or '–'} |")
    return rows


def processor():
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skein", required=True, help="the program")
    parser.add_argument("--codex", help="the native program of @openai/codex")
    parser.add_argument("--srt", help="cli.js of @anthropic-ai/sandbox-runtime")
    parser.add_argument("--versions", default="", help="the versions of the peers, for the report")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=5)
    parser.add_argument("--calls", type=int, default=40, help="shell calls per session")
    parser.add_argument("--write", help="the Markdown file with the markers between which the tables go")
    parser.add_argument("--raw", help="a file for all figures, as JSON")
    options = parser.parse_args()
    skein = os.path.abspath(options.skein)
    commands = {"true": [shutil.which("true")], "skein sandbox -- true": [skein, "sandbox", "--", "true"]}
    if options.codex:
        commands["codex sandbox -- true"] = [os.path.abspath(options.codex), "sandbox", "--", "true"]
    if options.srt:
        commands["srt true"] = [shutil.which("node"), os.path.abspath(options.srt), "true"]
    loads = [os.getloadavg()[0]]
    # Not in /tmp: codex makes no helper programs there.
    base = Path.cwd() / "target" / "bench"
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sandbox-", dir=base) as folder:
        project = os.path.join(folder, "project")
        os.mkdir(project)
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "SHELL": "/bin/bash"}
        times = starts(commands, options.rounds, project, environment)
        calls = shell_calls(skein, options.sessions, options.calls, project, environment)
    loads.append(os.getloadavg()[0])
    conditions = (
        f"{options.rounds} rounds, {options.sessions} sessions of {options.calls} calls{options.versions}; "
        f"{os.cpu_count()} cores ({processor()}), load average {loads[0]:.1f} before and {loads[1]:.1f} after."
    )
    lines = [textwrap.fill(conditions, 100), "", *start_table(times), "", *call_table(calls)]
    tables = "".join(line + "\n" for line in lines)
    print(tables)
    if options.raw:
        Path(options.raw).write_text(json.dumps({"starts": times, "calls": calls}, indent=1) + "\n")
    if options.write:
        before, _, rest = Path(options.write).read_text().partition(BEGIN)
        _, marker, after = rest.partition(END)
        if not marker:
            sys.exit(f"{options.write} has no place for the tables: {BEGIN.strip()} … {END.strip()}")
        Path(options.write).write_text(before + BEGIN + tables + END + after)


if __name__ == "__main__":
    main()
