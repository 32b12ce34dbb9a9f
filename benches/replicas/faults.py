"""Runs turns on three replicas while one thing goes wrong, and checks what the store has afterwards.

In every case: no acknowledged turn is lost, no call runs twice, no session has two owners, and each client gets the rest
of its turn or the error `turn interrupted`.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

from cluster import Client, Cluster, Disconnected, Model, Replica, wait_for

INTERRUPTED = "turn interrupted"
CLIENTS = 6


class Worker(threading.Thread):
    """A client that prompts one session again and again, and connects again when it loses its connection."""

    def __init__(self, cluster, name, end):
        super().__init__(daemon=True)
        self.cluster, self.name, self.end = cluster, name, end
        self.client, self.session, self.turns = None, None, 0
        # The outcome of each turn by its name.
        self.outcomes, self.problems = {}, []

    def run(self):
        while not self.end.is_set():
            turn = f"{self.name}-{self.turns}"
            try:
                self.connect()
                self.turns += 1
                self.outcomes[turn] = self.prompt(turn)
            except Disconnected as problem:
                self.problems.append(str(problem))
                self.client = None
                if turn in self.started:
                    self.outcomes[turn] = self.find_outcome(turn)
                time.sleep(0.2)

    started = frozenset()

    def params(self):
        return {"sessionId": self.session, "cwd": str(self.cluster.project), "mcpServers": []}

    def connect(self):
        if self.client:
            return
        self.client = Client(self.cluster.port, self.cluster.token)
        if not self.session:
            answer = self.client.ask("session/new", {"cwd": str(self.cluster.project), "mcpServers": []})
            if "error" in answer:
                self.client = None
                raise Disconnected(json.dumps(answer["error"]))
            self.session = answer["result"]["sessionId"]
            return
        answer = self.client.ask("session/load", self.params(), self.session)
        if "error" in answer:
            self.client = None
            raise Disconnected(json.dumps(answer["error"]))
        self.loaded = answer["result"].get("_meta", {}).get("_skein/turn", {})

    loaded = {}

    def prompt(self, turn):
        content = [{"type": "text", "text": f"turn {turn} please"}]
        self.started = self.started | {turn}
        answer = self.client.ask("session/prompt", {"sessionId": self.session, "prompt": content}, self.session)
        if "error" in answer:
            if INTERRUPTED in answer["error"]["message"]:
                # The session is elsewhere now.
                self.client = None
                return INTERRUPTED
            return "error: " + answer["error"]["message"]
        return answer["result"]["stopReason"]

    def has_prompt(self, turn):
        """Whether the session that was loaded has the prompt of a turn."""
        updates = [message.get("params", {}).get("update", {}) for message in self.client.log]
        prompts = [update for update in updates if update.get("sessionUpdate") == "user_message_chunk"]
        return any(f"turn {turn} " in json.dumps(prompt) for prompt in prompts)

    def find_outcome(self, turn):
        """Loads the session on a new connection, and waits for the end of the turn if it still runs."""
        end = time.monotonic() + 60 + self.cluster.expiry
        while time.monotonic() < end:
            try:
                self.connect()
                if not self.has_prompt(turn):
                    return "nothing is stored"
                if not self.loaded.get("running"):
                    failure = self.loaded.get("error", {}).get("message")
                    return self.loaded.get("stopReason") or failure or "nothing is stored"
                # The end may come before the response to the load.
                ends = [message for message in self.client.log if message.get("method") == "_skein/turn_ended"]
                while not ends:
                    message = self.client.receive()
                    ends = [message] if message.get("method") == "_skein/turn_ended" else []
                return ends[0]["params"].get("stopReason") or str(ends[0]["params"].get("error"))
            except Disconnected as problem:
                self.problems.append(str(problem))
                self.client = None
                time.sleep(0.3)
        return "no answer"


class Fault(Exception):
    """A rule is broken."""


def check(cluster, workers, least_turns):
    """Compares what clients were told with what the store and the folder have."""
    calls = (cluster.project / "calls.txt").read_text().split() if (cluster.project / "calls.txt").exists() else []
    twice = [turn for turn, count in collections.Counter(calls).items() if count > 1]
    if twice:
        raise Fault(f"calls ran twice: {twice}")
    outcomes = {turn: outcome for worker in workers for turn, outcome in worker.outcomes.items()}
    strange = {turn: outcome for turn, outcome in outcomes.items()
               if outcome != "end_turn" and INTERRUPTED not in str(outcome) and not str(outcome).startswith("error: ")
               and outcome not in ("nothing is stored", "cancelled")}
    if strange:
        raise Fault(f"clients were told something else: {strange}")
    if sum(outcome == "end_turn" for outcome in outcomes.values()) < least_turns:
        raise Fault(f"only few turns ended well: {collections.Counter(map(str, outcomes.values()))}")
    stored = cluster.postgres.sql(
        "SELECT s.id || '|' || e.seq || '|' || e.kind || '|' || coalesce(e.role, '') || '|' || replace(coalesce(e.text, ''), "
        "chr(10), ' ') FROM event e JOIN session s ON s.key = e.session WHERE s.parent IS NULL ORDER BY s.id, e.seq")
    rows = [line.split("|", 4) for line in stored.splitlines() if line]
    texts = " ".join(row[4] for row in rows if row[3] == "assistant")
    lost = [turn for turn, outcome in outcomes.items() if outcome == "end_turn" and f"done {turn}" not in texts]
    if lost:
        raise Fault(f"acknowledged turns are not stored: {lost}")
    running, last = {}, {}
    for session, seq, kind, role, text in rows:
        if int(seq) != last.get(session, 0) + 1:
            raise Fault(f"{session} has a gap before event {seq}")
        last[session] = int(seq)
        if kind == "message" and role == "user" and "turn " in text:
            if running.get(session):
                raise Fault(f"{session}: a turn began before the end of another one, so it had two owners")
            running[session] = True
        if kind == "turn_ended":
            running[session] = False
    interrupted = sum(INTERRUPTED in str(outcome) for outcome in outcomes.values())
    return f"{len(outcomes)} turns, {interrupted} interrupted, {len(calls)} calls"


@contextlib.contextmanager
def turns_on(cluster, count=CLIENTS):
    """Runs turns until the block ends, and then lets the last ones end."""
    end = threading.Event()
    workers = [Worker(cluster, f"w{number}", end) for number in range(count)]
    for worker in workers:
        worker.start()
    wait_for("every client has had a turn", lambda: all(worker.outcomes for worker in workers), 90)
    try:
        yield workers
    finally:
        end.set()
    for worker in workers:
        worker.join(120)
        if worker.is_alive():
            raise Fault(f"{worker.name} still waits for its turn")


def busy_replica(cluster, workers):
    """A replica that owns the session of a client."""
    owners = [cluster.owner_of(worker.session) for worker in workers]
    return next((owner for owner in owners if owner), cluster.replicas[0])


def kill(cluster, workers, delay):
    replica = busy_replica(cluster, workers)
    time.sleep(delay)
    replica.kill()
    time.sleep(cluster.expiry + 2)
    replica.start()
    wait_for("it is ready again", replica.is_ready)


def kill_in_turn(cluster, workers, short):
    kill(cluster, workers, 0.9)


def kill_in_call(cluster, workers, short):
    kill(cluster, workers, 0.3)


def kill_in_write(cluster, workers, short):
    """Kills at random moments, so that some are in the middle of a transaction."""
    for _ in range(1 if short else 4):
        kill(cluster, workers, random.random())


def pause(cluster, workers, short):
    replica = busy_replica(cluster, workers)
    replica.process.send_signal(signal.SIGSTOP)
    time.sleep(cluster.expiry * 2)
    replica.process.send_signal(signal.SIGCONT)
    wait_for("it is ready again", replica.is_ready)
    time.sleep(2)


def restart_database(cluster, workers, short):
    cluster.postgres.stop()
    time.sleep(1)
    cluster.postgres.start()
    time.sleep(cluster.expiry)


def stop_database(cluster, workers, short):
    cluster.forwarder.stopped.set()
    time.sleep(8 if short else 30)
    cluster.forwarder.stopped.clear()
    time.sleep(cluster.expiry * 2)
    wait_for("all are ready again", lambda: all(replica.is_ready() for replica in cluster.replicas))


def exhaust_connections(cluster, workers, short):
    """Takes all connections of the database, and ends those of the replicas, so that they find none."""
    # They end by themselves: nobody could connect to end them.
    sleep = f"SELECT pg_sleep({cluster.expiry + 5})"
    command = [cluster.postgres.programs / "psql", "-X", "-q", "-h", "127.0.0.1", "-p", str(cluster.postgres.port), "-U",
               "skein", "-d", "own", "-c", sleep]
    end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'skein%'"
    ending = subprocess.Popen([*command[:-1], f"SELECT pg_sleep(3); {end}"], stdout=subprocess.DEVNULL)
    time.sleep(1)
    taken = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(60)]
    if ending.wait() != 0:
        raise Fault("the connections of the replicas were not ended")
    # Each connection that ends is taken at once.
    late = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(30)]
    for process in taken + late:
        process.wait()
    wait_for("all are ready again", lambda: all(replica.is_ready() for replica in cluster.replicas))
    time.sleep(cluster.expiry)


def fill_disk(cluster, workers, short):
    filler = cluster.postgres.folder / "filler"
    with open(filler, "wb") as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(b"x" * (1 << 16))
                file.flush()
    time.sleep(cluster.expiry * 2)
    filler.unlink()
    cluster.postgres.ensure_running()
    wait_for("all are ready again", lambda: all(replica.is_ready() for replica in cluster.replicas))
    time.sleep(cluster.expiry * 2)


def upgrade(cluster, workers, short):
    """Adds a column, as a newer program would, and starts one replica after the other again."""
    cluster.postgres.sql("BEGIN; ALTER TABLE session ADD COLUMN later TEXT; "
                         "INSERT INTO skein_schema (version, oldest_program) VALUES (1000, '0.1.0'); COMMIT")
    for replica in cluster.replicas:
        replica.stop()
        replica.start()
        wait_for(f"{replica.name} is ready again", replica.is_ready)
        time.sleep(1)


def lose_folder(cluster, workers, short):
    """Starts a replica without the shared folder: it is not ready, and takes over nothing."""
    other = Replica(cluster, "replica-without-folder").start()
    try:
        wait_for("it is not ready", lambda: (other.readiness() or (0,))[0] == 503)
        reason = other.readiness()[1]
        if "--shared-dir" not in reason:
            raise Fault(f"the reason is unclear: {reason}")
        session = workers[0].session
        client = Client(other.port, cluster.token)
        answer = client.ask("session/load", workers[0].params(), session)
        shown = json.dumps(answer)
        if "error" in answer and "the files of this session are on replica" not in shown and "is open on" not in shown:
            raise Fault(f"another error than about the folder: {shown}")
    finally:
        other.stop()


CASES = {
    "kill in mid-turn": (kill_in_turn, {}),
    "kill in mid-call": (kill_in_call, {}),
    "kill in mid-write": (kill_in_write, {}),
    "pause longer than the expiry": (pause, {}),
    "restart of the database": (restart_database, {}),
    "30 s without the database": (stop_database, {}),
    "exhausted connections": (exhaust_connections, {"settings": ["max_connections=50"]}),
    "full disk of the database": (fill_disk, {"disk": "112m"}),
    "rolling upgrade with a migration": (upgrade, {}),
    "a replica without the shared folder": (lose_folder, {}),
}


@contextlib.contextmanager
def small_disk(size):
    """A small file system for the database. Only root can mount one."""
    if not size:
        yield None
        return
    folder = tempfile.mkdtemp(prefix="skein-disk-")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=False)
        os.rmdir(folder)


def run_case(name, arguments):
    act, options = CASES[name]
    if options.get("disk") and os.geteuid() != 0:
        return "skipped: only root can mount a small disk"
    with small_disk(options.get("disk")) as disk:
        settings = options.get("settings", []) + ["min_wal_size=2MB", "max_wal_size=8MB"]
        cluster = Cluster(arguments.skein, 3, arguments.expiry, database=disk, settings=settings)
        try:
            with turns_on(cluster, 3 if arguments.short else CLIENTS) as workers:
                act(cluster, workers, arguments.short)
            return check(cluster, workers, len(workers))
        finally:
            cluster.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skein", required=True)
    parser.add_argument("--expiry", type=int, default=5, help="seconds until a replica without heartbeats is gone")
    parser.add_argument("--short", action="store_true", help="fewer clients and shorter faults")
    parser.add_argument("case", nargs="*", help="the beginning of a case; all if none is named")
    arguments = parser.parse_args()
    names = [name for name in CASES if not arguments.case or any(name.startswith(case) for case in arguments.case)]
    if not names:
        sys.exit(f"there is no such case; the cases are: {', '.join(CASES)}")
    failed = 0
    for name in names:
        begun = time.monotonic()
        try:
            result = run_case(name, arguments)
        except (Fault, RuntimeError) as problem:
            result, failed = f"FAILED: {problem}", failed + 1
        print(f"{name:38} {time.monotonic() - begun:6.1f} s  {result}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
