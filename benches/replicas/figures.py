"""Measures several replicas of `skein serve` and their store, and writes the figures as a table.

- turns per second with one, two and three replicas, or on a small machine the CPU of a turn
- how long the session of a killed replica takes to answer again
- one stored event in SQLite and in PostgreSQL, both durable
- a list, a search and a loaded session with 10,000 and with 1,000,000 sessions, and the plans of the queries
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

from cluster import Client, Cluster, Disconnected, Model, Postgres, USER

BEGIN, END = "<!-- replicas: written by scripts/bench --replicas -->\n", "<!-- replicas: end -->\n"
MANY_CORES = 8


def quick_model(folder):
    return Model(folder, pieces=4, delay=0, call_time=None)


def turns_of(cluster, clients, turns):
    """Runs turns of several clients. Returns turns per second, and CPU seconds of all replicas for each turn."""
    ready, go, failures = threading.Barrier(clients + 1), threading.Event(), []

    def work(number):
        try:
            client = Client(cluster.port, cluster.token)
            opened = client.ask("session/new", {"cwd": str(cluster.project), "mcpServers": []})
            session = opened["result"]["sessionId"]
            prompt = lambda turn: {"sessionId": session, "prompt": [{"type": "text", "text": f"turn {turn} please"}]}
            client.ask("session/prompt", prompt("warm"), session)
            ready.wait()
            go.wait()
            for turn in range(turns):
                answer = client.ask("session/prompt", prompt(f"{number}-{turn}"), session)
                if answer.get("result", {}).get("stopReason") != "end_turn":
                    raise Disconnected(json.dumps(answer))
        except (Disconnected, KeyError) as problem:
            failures.append(problem)
            ready.abort()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        ready.wait()
    except threading.BrokenBarrierError:
        sys.exit(f"a client failed: {failures}")
    used = sum(replica.cpu_seconds() for replica in cluster.replicas)
    begun = time.monotonic()
    go.set()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begun
    used = sum(replica.cpu_seconds() for replica in cluster.replicas) - used
    if failures:
        sys.exit(f"a client failed: {failures}")
    return clients * turns / seconds, used / (clients * turns)


def recovery(program, expiry):
    """Kills the owner of a session, and returns how long another replica takes to load it."""
    cluster = Cluster(program, 3, expiry, model=quick_model)
    try:
        client = Client(cluster.port, cluster.token)
        opened = client.ask("session/new", {"cwd": str(cluster.project), "mcpServers": []})
        session = opened["result"]["sessionId"]
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "turn 1 please"}]}
        client.ask("session/prompt", prompt, session)
        owner = cluster.owner_of(session)
        other = next(replica for replica in cluster.replicas if replica is not owner)
        owner.kill()
        begun = time.monotonic()
        while True:
            try:
                again = Client(other.port, cluster.token)
                params = {"sessionId": session, "cwd": str(cluster.project), "mcpServers": []}
                if "result" in again.ask("session/load", params, session):
                    return time.monotonic() - begun
            except Disconnected:
                pass
            time.sleep(0.05)
    finally:
        cluster.stop()


FILL = """
INSERT INTO session (id, principal, files, cwd, roots, agent, mode, model, created_at, updated_at, events)
    SELECT 's' || lpad(n::text, 19, '0'), 'local', 'server', '/srv/' || n % 1000, '[]', 'goose', 'assistant', 'offline',
        n, n, 2 FROM generate_series(1, {count}) n;
INSERT INTO event (session, seq, at, kind, body, text, role, words, length)
    SELECT s.key, k, s.created_at, 'message', '{{"event":"message","message":{{"role":"user","parts":[]}}}}', t.text, 'user',
        to_tsvector('skein_words', t.text), 6
    FROM session s, generate_series(1, 2) k,
        LATERAL (SELECT 'word' || s.key % 5000 || ' river stone garden '
            || CASE WHEN s.key % ({count} / 100) = 0 THEN 'needle' ELSE 'hay' END AS text) t;
ANALYZE session; ANALYZE event;
"""


def store_figures(bench, explain):
    """Times the store with the program of benches/shared_store.rs."""
    def run(url, reads):
        variables = {**os.environ, "SKEIN_BENCH_STORE": url}
        if reads:
            variables["SKEIN_BENCH_READS"] = "1"
        return json.loads(subprocess.run([bench], env=variables, capture_output=True, text=True, check=True).stdout)

    with tempfile.TemporaryDirectory(dir=".") as folder:
        os.chmod(folder, 0o755)
        place = pathlib.Path(folder).resolve() / "postgres"
        place.mkdir()
        settings = ["shared_preload_libraries=auto_explain", "max_wal_size=4GB"]
        postgres = Postgres(place, settings)
        try:
            url = lambda name: f"postgres://{USER}@127.0.0.1:{postgres.port}/{name}?sslmode=disable"
            event, reads = run(url("own"), False), {}
            for name, count in (("few", 10_000), ("many", 1_000_000)):
                postgres.sql(f"CREATE DATABASE {name}", "postgres")
                run(url(name), True)
                postgres.sql(FILL.format(count=count), name)
                reads[name] = run(url(name), True)
            if explain:
                postgres.sql("ALTER SYSTEM SET auto_explain.log_min_duration = 0", "postgres")
                postgres.sql("SELECT pg_reload_conf()", "postgres")
                run(url("many"), True)
                plans = re.findall(r"Query Text: (.*?)(?=\n\d{4}-|\Z)", (place / "log").read_text(), re.S)
                shown = set()
                for plan in plans:
                    query = plan.split("\n")[0][:60]
                    if query not in shown and "FROM session" in plan:
                        shown.add(query)
                        print(plan, "\n")
            return event, reads
        finally:
            postgres.stop()


def ratio(value, limit, is_least):
    good = value >= limit if is_least else value <= limit
    text = f"{value:.2f}"
    return text if good else f"**{text}**"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skein", required=True)
    parser.add_argument("--bench", required=True, help="the program of benches/shared_store.rs")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--expiry", type=int, default=15)
    parser.add_argument("--explain", action="store_true", help="print the plans of the queries")
    parser.add_argument("--write", help="the page that gets the table")
    arguments = parser.parse_args()
    rates = {}
    for count in (1, 2, 3):
        cluster = Cluster(arguments.skein, count, model=quick_model)
        try:
            rates[count] = turns_of(cluster, arguments.clients, arguments.turns)
        finally:
            cluster.stop()
    rows = []
    cores = os.cpu_count()
    if cores >= MANY_CORES:
        for count, goal in ((2, 1.7), (3, 2.3)):
            value = rates[count][0] / rates[1][0]
            rows.append((f"turns per second, {count} replicas / 1", f"{rates[count][0]:.0f} / {rates[1][0]:.0f}",
                         ratio(value, goal, True), f"at least {goal}"))
    else:
        value = rates[3][1] / rates[1][1]
        rows.append(("CPU of a turn, 3 replicas / 1", f"{rates[3][1] * 1000:.1f} / {rates[1][1] * 1000:.1f} ms",
                     ratio(value, 1.2, False), "at most 1.2"))
    seconds = recovery(arguments.skein, arguments.expiry)
    goal = arguments.expiry + 1
    rows.append((f"a killed replica's session answers, expiry {arguments.expiry} s", f"{seconds:.1f} s",
                 ratio(seconds / goal, 1, False), f"at most {goal} s"))
    event, reads = store_figures(arguments.bench, arguments.explain)
    rows.append(("one durable event, PostgreSQL / SQLite", f"{event['postgres']:.2f} / {event['sqlite']:.2f} ms",
                 ratio(event["postgres"] / event["sqlite"], 3, False), "at most 3"))
    for what in ("list", "search", "load"):
        value = reads["many"][what] / reads["few"][what]
        rows.append((f"{what}, 10⁶ sessions / 10⁴", f"{reads['many'][what]:.2f} / {reads['few'][what]:.2f} ms",
                     ratio(value, 1.5, False), "at most 1.5"))
    lines = ["| what | figures | ratio | goal |", "| --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    table = "\n".join(lines)
    print(table)
    if arguments.write:
        page = pathlib.Path(arguments.write)
        before, rest = page.read_text().split(BEGIN)
        after = rest.split(END)[1]
        page.write_text(f"{before}{BEGIN}\n{table}\n\nMeasured with {cores} cores.\n\n{END}{after}")


if __name__ == "__main__":
    main()
