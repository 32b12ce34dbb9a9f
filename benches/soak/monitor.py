"""Samples of running programs, and whether they grow."""

import asyncio
import json
import os
import statistics
import time
from pathlib import Path

# What is sampled: key, words for the table, unit, and the growth that is allowed over the measured time, in a short and in
# a long run. The work of a moment takes some of each, and the pool of threads keeps a thread for ten seconds. In a long
# run, such moments change the slope less. On a busy machine, a session is longer than a window of a short run. A leak in
# each session would be hundreds, even in one minute.
MEASURES = [
    ("memory", "memory of {}", "MiB", 12.0, 8.0),
    ("descriptors", "descriptors of {}", "", 60, 6),
    ("threads", "threads of {}", "", 25, 5),
    ("sockets", "sockets of {}", "", 25, 4),
    ("processes", "processes below {}", "", 20, 4),
    # A session that is open, and each of its services, have some.
    ("tasks", "tasks of {}", "", 60, 12),
]
# Minutes from which a run is long.
LONG_RUN = 10
# In a short run, memory may also grow by this part of the value after the warm-up: a debug build takes more of it.
SHORT_PART = {"memory": 0.10}
# Seconds that a program may take to answer with the number of its tasks. The soak test stops it for up to one.
PATIENCE = 3
TEMPORARY = ("temporary", "temporary files and folders", "", 5, 5)
# The least value of each window counts, so that what happens to run at a moment does not.
WINDOWS = 10


def stat(pid):
    """The fields of /proc/PID/stat behind the name: state, parent, …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def descendants(root):
    """All processes below a process."""
    below = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            below.setdefault(int(stat(name)[1]), []).append(int(name))
        except OSError:
            continue
    found = list(below.get(root, []))
    for pid in found:
        found += below.get(pid, [])
    return found


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def sample(pid):
    """The present values of one program. None if it has ended."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        links = []
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
            except OSError:
                continue
    except OSError:
        return None
    return {
        "memory": int(status["VmRSS"].split()[0]) / 1024,
        "descriptors": len(links),
        "threads": int(status["Threads"]),
        "sockets": sum(link.startswith("socket:") for link in links),
        "processes": len(descendants(pid)),
    }


async def report(socket):
    """What a program reports on its status socket."""
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        return json.loads(await reader.read())
    finally:
        writer.close()


async def count_tasks(socket):
    """The number of asynchronous tasks of a program. None if it does not answer in time."""
    try:
        return (await asyncio.wait_for(report(socket), PATIENCE)).get("tasks")
    except (OSError, ValueError, asyncio.TimeoutError):
        return None


class Series:
    """Values of one measure over time."""

    def __init__(self, words, unit, allowed, part):
        self.words, self.unit, self.allowed, self.part, self.values = words, unit, allowed, part, []

    def add(self, value):
        self.values.append((time.monotonic(), value))

    def growth(self, begin):
        """The first value after the warm-up, the last one, the growth by the median slope, and the growth that is allowed.
        None if there are too few values."""
        values = [(at, value) for at, value in self.values if at >= begin]
        if len(values) < 2:
            return None
        width = max(1e-9, (values[-1][0] - begin) / WINDOWS)
        windows = {}
        for at, value in values:
            number = min(WINDOWS - 1, int((at - begin) / width))
            windows[number] = min(value, windows.get(number, value))
        numbers = sorted(windows)
        pairs = [(one, other) for one in numbers for other in numbers if one < other]
        if not pairs:
            return None
        slope = statistics.median((windows[other] - windows[one]) / (other - one) for one, other in pairs)
        first, last = windows[numbers[0]], windows[numbers[-1]]
        return first, last, slope * (WINDOWS - 1), max(self.allowed, self.part * first)


class Monitor:
    """Samples the programs that run from the beginning to the end, and the temporary files. `steady` has the temporary files
    of these programs, and `temporary` those of all."""

    def __init__(self, temporary, steady, sockets, minutes):
        self.temporary, self.steady, self.sockets = temporary, steady, sockets
        self.is_long, self.programs, self.series = minutes >= LONG_RUN, {}, {}

    def new_series(self, key, words, unit, short, long):
        return Series(words, unit, long, 0) if self.is_long else Series(words, unit, short, SHORT_PART.get(key, 0))

    def watch(self, name, pid):
        self.programs[name] = pid
        for key, words, *rest in MEASURES:
            self.series[name, key] = self.new_series(key, words.format(name), *rest)
        self.series.setdefault(("", "temporary"), self.new_series(*TEMPORARY))

    async def take(self):
        for name, pid in self.programs.items():
            values = sample(pid) or {}
            values["tasks"] = await count_tasks(self.sockets / f"{pid}.sock")
            for key, value in values.items():
                if value is not None:
                    self.series[name, key].add(value)
        count = sum(len(files) for _, _, files in os.walk(self.temporary))
        # A program that was killed with -9 cannot remove its temporary folders.
        count += sum(len(folders) for _, folders, _ in os.walk(self.steady))
        # A program that was killed with -9 cannot remove its socket. The next `skein services` does.
        sockets = self.sockets.iterdir() if self.sockets.exists() else []
        count += sum(not file.stem.isdigit() or Path("/proc", file.stem).exists() for file in sockets)
        self.series["", "temporary"].add(count)
