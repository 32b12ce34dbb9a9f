#!/usr/bin/env python3
"""Measures what it costs to reach an agent through `skein acp` instead of directly, and prints a table.

For each agent both sides are alive at once and are asked in turn, so that what else the machine does falls on both:
the time from a prompt to its first chunk, and the CPU of a long stream. Standard library only; needs Linux for /proc.

The agents are `skein-acp-echo`, which does nothing but talk, so that it shows the cost of the way itself, and goose with
a scripted model, which works as real agents do.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
from pathlib import Path

import model
from client import Agent

DELTAS, WARM_UP = 20_000, 5

# What is measured: key, words for the table, the greatest ratio through / direct that is the goal.
MEASURES = [
    ("chunk", "prompt → first chunk", 1.10),
    ("cpu", f"{DELTAS:,} deltas, CPU without the client", 1.20),
    ("client", f"{DELTAS:,} deltas, CPU of the client", None),
    ("time", f"{DELTAS:,} deltas, total time", None),
]


class Side:
    """One way to the agent, with a session in it and what was measured."""

    def __init__(self, agent, cwd):
        self.agent, self.found = agent, {key: [] for key, _, _ in MEASURES}
        self.session, _ = agent.session(cwd)

    def first_chunk(self, kind):
        first, _, said = self.agent.prompt(self.session, kind.say)
        assert said == kind.said, said
        self.found["chunk"].append(1e3 * first)

    def stream(self, kind, times):
        """One figure for several streams: the kernel counts CPU in hundredths of a second."""
        agents, client, whole = self.agent.cpu(), own_cpu(), 0
        for _ in range(times):
            _, seconds, said = self.agent.prompt(self.session, kind.stream)
            assert said == kind.streamed, "the stream did not arrive whole"
            whole += seconds
        self.found["cpu"].append(1e3 * (self.agent.cpu() - agents) / times)
        self.found["client"].append(1e3 * (own_cpu() - client) / times)
        self.found["time"].append(1e3 * whole / times)


class Kind:
    """An agent: how it is started, its prompts, and what it says to them."""

    def __init__(self, name, command, env, say, stream):
        self.name, self.command, self.env = name, command, env
        (self.say, self.said), (self.stream, self.streamed) = say, stream

    def manifest(self):
        acp = {"command": self.command[0], "args": self.command[1:], "env": self.env}
        modes = [{"slug": "default", "description": "As it is.", "tool_groups": []}]
        return {"version": 1, "kind": "agent", "name": f"bench-{self.name}", "description": "Measured.", "modes": modes} | {
            "runtime": {"acp": acp}
        }

    def direct(self, home, cwd):
        return Agent(self.command, environment(home) | self.env, cwd)

    def through(self, skein, home, cwd):
        config = Path(home, "config", "agents")
        config.mkdir(parents=True)
        (config / "bench.json").write_text(json.dumps(self.manifest()))
        env = {"SKEIN_CONFIG_DIR": str(config.parent), "SKEIN_DATA_DIR": str(Path(home, "data"))}
        mode = ["--agent", f"bench-{self.name}", "--mode", "default", "--approval", "auto"]
        return Agent([skein, "acp", *mode], environment(home) | env, cwd)

    def measure(self, options):
        with tempfile.TemporaryDirectory(prefix="relay-") as folder:
            homes = [Path(folder, name) for name in ("direct", "through")]
            cwds = [home / "project" for home in homes]
            for cwd in cwds:
                cwd.mkdir(parents=True)
            second = self.direct if options.both_direct else lambda *at: self.through(os.path.abspath(options.skein), *at)
            with self.direct(homes[0], cwds[0]) as one, second(homes[1], cwds[1]) as two:
                sides = [Side(one, str(cwds[0])), Side(two, str(cwds[1]))]
                self.rounds(sides, options)
        return [side.found for side in sides]

    def rounds(self, sides, options):
        for number in range(WARM_UP + options.prompts):
            for side in sides if number % 2 else reversed(sides):
                side.first_chunk(self)
        for side in sides:
            del side.found["chunk"][:WARM_UP]
            side.agent.prompt(side.session, self.stream)
        for number in range(options.rounds):
            for side in sides if number % 2 else reversed(sides):
                side.stream(self, options.streams)
            done = {key: [round(side.found[key][-1], 1) for side in sides] for key in ("cpu", "client", "time")}
            print(self.name, number + 1, done, file=sys.stderr)


def environment(home):
    return {"PATH": os.environ["PATH"], "HOME": str(home), "SHELL": "/bin/bash"}


def own_cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def kinds(options, port):
    words = "".join(f"d{number} " for number in range(DELTAS))
    echo = Kind("echo", [os.path.abspath(options.echo)], {}, ("say hello", "hello"), (f"burst {DELTAS}", words))
    if not options.goose:
        return [echo]
    # As benches/acp/compare.py has it.
    env = {"GOOSE_PROVIDER": "openai", "GOOSE_MODEL": "gpt-4o", "OPENAI_HOST": f"http://127.0.0.1:{port}"}
    env |= {"OPENAI_API_KEY": "none", "GOOSE_DISABLE_KEYRING": "1", "GOOSE_TELEMETRY_ENABLED": "false"}
    goose = [os.path.abspath(options.goose), "acp"]
    stream = (f"bench:stream:{DELTAS}", "word " * DELTAS)
    return [echo, Kind("goose", goose, env, ("bench:say", "hello"), stream)]


def rows(name, direct, through):
    for key, words, goal in MEASURES:
        ours, theirs = (statistics.median(found[key]) for found in (through, direct))
        # What was measured one after the other is compared with each other.
        ratio = statistics.median(one / other for one, other in zip(through[key], direct[key]))
        mark = "**" if goal and ratio > goal else ""
        wanted = f"≤ {goal:.2f}" if goal else "–"
        yield f"| {name} | {words} | {theirs:,.2f} ms | {ours:,.2f} ms | {mark}{ratio:.2f}{mark} | {wanted} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skein", help="the program")
    parser.add_argument("--echo", required=True, help="skein-acp-echo")
    parser.add_argument("--goose", help="goose; left out if it is not given")
    parser.add_argument("--prompts", type=int, default=100, help="prompts for the time to the first chunk")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of the stream")
    parser.add_argument("--streams", type=int, default=5, help="streams in each of them")
    parser.add_argument("--both-direct", action="store_true", help="measure the agent directly on both sides: all ratios are 1")
    parser.add_argument("--raw", help="a file for all figures, as JSON")
    options = parser.parse_args()
    if not options.skein and not options.both_direct:
        parser.error("--skein says which program is measured")
    loads, found, table = [os.getloadavg()[0]], {}, []
    with model.serve() as port:
        for kind in kinds(options, port):
            found[kind.name] = kind.measure(options)
            table += rows(kind.name, *found[kind.name])
    loads.append(os.getloadavg()[0])
    second = "direct again" if options.both_direct else "through skein"
    print(f"Medians of {options.prompts} prompts and {options.rounds} × {options.streams} streams in one run; {os.cpu_count()} cores, ", end="")
    print(f"load average {loads[0]:.1f} before and {loads[1]:.1f} after.\n")
    print(f"| agent | | direct | {second} | ratio | goal |\n|---|---|---|---|---|---|")
    print("\n".join(table))
    if options.raw:
        Path(options.raw).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
