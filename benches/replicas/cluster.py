"""PostgreSQL, haproxy, a scripted model and several `skein serve` processes on one machine, and clients of them."""

import glob
import http.client
import http.server
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time

USER = "skein"
NOBODY = 65534
PATIENCE = 60


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what, check, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if check():
            return
        time.sleep(0.05)
    raise RuntimeError(f"waited too long until {what}")


def listens(port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def unprivileged():
    """Arguments that start a program as another user than root, which PostgreSQL requires."""
    if os.geteuid() != 0:
        return {}
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


class Postgres:
    """A database server in its own folder, which may be a small file system."""

    def __init__(self, folder, settings=()):
        self.programs = pathlib.Path(sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1])
        self.folder = pathlib.Path(folder)
        self.data = self.folder / "data"
        self.port = free_port()
        self.settings = [f"-c{setting}" for setting in settings]
        if os.geteuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
        self.run("initdb", "-D", self.data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync",
                 "--wal-segsize=1")
        self.process = None
        self.start()
        self.sql("CREATE DATABASE own", "postgres")

    def run(self, program, *arguments):
        command = [self.programs / program, *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, env={"LC_ALL": "C"}, **unprivileged())
        if done.returncode != 0:
            raise RuntimeError(f"{program}: {done.stderr.decode()}")
        return done.stdout.decode().strip()

    def start(self):
        command = [self.programs / "postgres", "-D", self.data, "-h", "127.0.0.1", "-p", str(self.port),
                   "-k", self.folder, *self.settings]
        log = open(self.folder / "log", "ab")
        self.process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env={"LC_ALL": "C"},
                                        start_new_session=True, **unprivileged())
        wait_for("PostgreSQL answers", lambda: self.try_sql("SELECT 1", "postgres") == "1")

    def stop(self, how=signal.SIGINT):
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(PATIENCE)

    def ensure_running(self):
        """Starts the server again if it has ended, as it does when it cannot write its log."""
        if self.process.poll() is not None:
            self.start()

    def try_sql(self, sql, database="own"):
        command = [self.programs / "psql", "-X", "-A", "-t", "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER,
                   "-d", database, "-c", sql]
        done = subprocess.run(command, capture_output=True, env={"LC_ALL": "C"})
        return done.stdout.decode().strip() if done.returncode == 0 else None

    def sql(self, sql, database="own"):
        answer = self.try_sql(sql, database)
        if answer is None:
            raise RuntimeError(f"the database refuses: {sql}")
        return answer


class Forwarder:
    """Forwards connections to the database. It can stop without closing them."""

    def __init__(self, target):
        self.target = target
        self.stopped = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self.carry, args=(one, other), daemon=True).start()

    def carry(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                while self.stopped.is_set():
                    time.sleep(0.05)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Model:
    """A model in the OpenAI dialect: calls the shell once in each turn, and then says `done TURN` in pieces."""

    def __init__(self, folder, pieces=4, delay=0.15, call_time=0.4):
        self.folder, self.pieces, self.delay, self.call_time = folder, pieces, delay, call_time
        model = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                body = b'{"object": "list", "data": [{"id": "scripted", "object": "model"}]}'
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                try:
                    for chunk in model.answer(request):
                        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                        self.wfile.flush()
                    self.wfile.write(b"data: [DONE]\n\n")
                except OSError:
                    # Skein has cancelled the request.
                    pass
                self.close_connection = True

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True
            request_queue_size = 256

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request):
        def chunk(delta, reason=None, usage=None):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            body = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "scripted", "choices": [choice]}
            return {**body, "usage": usage} if usage else body

        words = [text_of(message) for message in request["messages"] if message["role"] == "user"]
        # Skein sends the prompt of a turn that was interrupted before its answer, and the next prompt, as one message.
        turn = (["none"] + re.findall(r"\bturn (\S+) please", "\n".join(words)))[-1]
        has_result = request["messages"][-1]["role"] == "tool"
        usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
        if self.call_time is not None and not has_result and request.get("tools"):
            command = f"echo {turn} >> calls.txt; sleep {self.call_time}"
            call = {"name": "developer__shell", "arguments": json.dumps({"command": command})}
            yield chunk({"role": "assistant", "tool_calls": [{"index": 0, "id": f"call-{turn}", "type": "function",
                                                              "function": call}]})
            yield chunk({}, "tool_calls", usage)
            return
        for piece in ["done ", turn] + ["."] * (self.pieces - 2):
            time.sleep(self.delay)
            yield chunk({"role": "assistant", "content": piece})
        yield chunk({}, "stop", usage)


def text_of(message):
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content)


class Replica:
    """One `skein serve` with folders of its own."""

    def __init__(self, cluster, name, flags=()):
        self.cluster, self.name, self.flags = cluster, name, list(flags)
        self.folder = cluster.folder / name
        for part in ("home", "config", "data"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        config = f"version: 1\nstore: {{expiry: {cluster.expiry}s}}\n"
        (self.folder / "config" / "config.yaml").write_text(config)
        self.port, self.internal_port, self.process = free_port(), free_port(), None

    def environment(self):
        return {
            "PATH": os.environ["PATH"], "HOME": str(self.folder / "home"), "LANG": "C.UTF-8",
            "SKEIN_CONFIG_DIR": str(self.folder / "config"), "SKEIN_DATA_DIR": str(self.folder / "data"),
            "SKEIN_STORE": self.cluster.url(), "SKEIN_MODEL": "openai:scripted",
            "OPENAI_BASE_URL": self.cluster.model.url, "OPENAI_API_KEY": "a-key-for-a-test",
        }

    def start(self):
        command = [self.cluster.program, "serve", "-a", "coding", "--approval", "auto", "--listen",
                   f"127.0.0.1:{self.port}", "--internal-listen", f"127.0.0.1:{self.internal_port}", "--drain", "20s", *self.flags]
        log = open(self.folder / "log", "ab")
        self.process = subprocess.Popen(command, cwd=self.cluster.project, env=self.environment(), stdout=log, stderr=log,
                                        start_new_session=True)
        wait_for(f"{self.name} listens", lambda: listens(self.port) or self.process.poll() is not None)
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} has ended: {(self.folder / 'log').read_text()[-2000:]}")
        return self

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(PATIENCE)

    def readiness(self):
        """The status and the text of /readyz. `None` if there is no answer."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            return answer.status, answer.read().decode().strip()
        except OSError:
            return None

    def is_ready(self):
        return (self.readiness() or (0,))[0] == 200

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


HAPROXY = """
global
    maxconn 4000
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout tunnel 1h
    timeout check 2s
    retries 3
    option redispatch
frontend skein
    bind 127.0.0.1:{port}
    default_backend replicas
backend replicas
    balance roundrobin
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host 127.0.0.1
    http-check expect status 200
    stick-table type string len 64 size 200k expire 2h
    stick on req.hdr(Acp-Connection-Id)
    stick on req.hdr(Mcp-Session-Id)
    stick store-response res.hdr(Acp-Connection-Id)
    stick store-response res.hdr(Mcp-Session-Id)
{servers}
"""


class Cluster:
    """A database, a load balancer and replicas."""

    def __init__(self, program, replicas=3, expiry=5, database=None, settings=(), model=None):
        self.program, self.expiry = str(pathlib.Path(program).resolve()), expiry
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="skein-replicas-"))
        os.chmod(self.folder, 0o755)
        self.project = self.folder / "project"
        self.shared = self.folder / "shared"
        for part in (self.project, self.shared):
            part.mkdir()
        database = database or self.folder / "postgres"
        pathlib.Path(database).mkdir(exist_ok=True)
        self.postgres = Postgres(database, settings)
        self.forwarder = Forwarder(self.postgres.port)
        self.model = model(self.project) if model else Model(self.project)
        flags = ["--shared-dir", str(self.shared)]
        self.replicas = [Replica(self, f"replica-{number}", flags) for number in range(1, replicas + 1)]
        self.token = self.create_token()
        for replica in self.replicas:
            replica.start()
        self.haproxy = None
        self.port = free_port()
        self.start_haproxy()

    def url(self):
        return f"postgres://{USER}@127.0.0.1:{self.forwarder.port}/own?sslmode=disable"

    def create_token(self):
        command = [self.program, "token", "create", "--name", "ann", "--root", str(self.project)]
        done = subprocess.run(command, env=self.replicas[0].environment(), cwd=self.project, capture_output=True, check=True)
        return done.stdout.decode().split()[-1]

    def start_haproxy(self):
        program = shutil.which("haproxy") or "/usr/sbin/haproxy"
        if not os.path.exists(program):
            sys.exit("haproxy is missing: install the Debian package haproxy")
        lines = [f"    server {replica.name} 127.0.0.1:{replica.port} check inter 500ms fall 2 rise 1"
                 for replica in self.replicas]
        config = self.folder / "haproxy.cfg"
        config.write_text(HAPROXY.format(port=self.port, servers="\n".join(lines)))
        log = open(self.folder / "haproxy.log", "ab")
        self.haproxy = subprocess.Popen([program, "-f", config, "-db"], stdout=log, stderr=log, start_new_session=True)
        wait_for("haproxy listens", lambda: listens(self.port))
        wait_for("all replicas are ready", lambda: all(replica.is_ready() for replica in self.replicas))

    def owner_of(self, session):
        """The replica that owns a session. `None` if none does."""
        address = self.postgres.sql(
            f"SELECT r.address FROM ownership o JOIN replica r ON r.id = o.replica WHERE o.session = '{session}'")
        owners = [replica for replica in self.replicas if address.endswith(f":{replica.internal_port}")]
        return owners[0] if owners else None

    def stop(self):
        self.forwarder.stopped.clear()
        for replica in self.replicas:
            try:
                replica.stop()
            except (OSError, subprocess.TimeoutExpired):
                replica.kill()
        if self.haproxy:
            self.haproxy.terminate()
            self.haproxy.wait(PATIENCE)
        self.postgres.stop(signal.SIGQUIT)
        if not os.environ.get("KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)


class Disconnected(Exception):
    """The connection to the server is lost. A client connects again."""


class Client:
    """An ACP client over HTTP with event streams. It consents to every call."""

    def __init__(self, port, token):
        self.port, self.token = port, token
        self.messages, self.log = queue.Queue(), []
        self.next_id, self.streams, self.is_lost = 1, set(), False
        self.connection = None
        status, headers, body = self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize",
                                           "params": {"protocolVersion": 1, "clientCapabilities": {}}})
        if status != 200 or "acp-connection-id" not in headers:
            raise Disconnected(f"initialize: {status} {body[:200]}")
        self.connection = headers["acp-connection-id"]
        self.open_stream(None)

    def headers(self):
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        return {**headers, "acp-connection-id": self.connection} if self.connection else headers

    def post(self, message):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
            connection.request("POST", "/acp", json.dumps(message), self.headers())
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise Disconnected(str(error)) from error

    def open_stream(self, session):
        if session in self.streams:
            return
        self.streams.add(session)
        headers = {**self.headers(), "accept": "text/event-stream"}
        if session:
            headers["acp-session-id"] = session
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
            connection.request("GET", "/acp", headers=headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise Disconnected(str(error)) from error
        if answer.status != 200:
            raise Disconnected(f"stream: {answer.status}")
        threading.Thread(target=self.read, args=(answer,), daemon=True).start()

    def read(self, answer):
        try:
            for line in answer:
                if line.startswith(b"data: "):
                    self.messages.put(json.loads(line[6:]))
        except (OSError, ValueError, http.client.HTTPException):
            pass
        self.messages.put(None)

    def send(self, method, params, session=None):
        """Sends a request and returns its id."""
        if session:
            self.open_stream(session)
        number = self.next_id
        self.next_id += 1
        status, _, body = self.post({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        if status != 202:
            raise Disconnected(f"{method}: {status} {body[:200]}")
        return number

    def receive(self, seconds=PATIENCE):
        try:
            message = self.messages.get(timeout=seconds)
        except queue.Empty:
            raise Disconnected("no message in time") from None
        if message is None:
            raise Disconnected("a stream has ended")
        self.log.append(message)
        if message.get("method") == "session/request_permission":
            outcome = {"outcome": {"outcome": "selected", "optionId": "allow_once"}}
            self.post({"jsonrpc": "2.0", "id": message["id"], "result": outcome})
        return message

    def ask(self, method, params, session=None, seconds=PATIENCE):
        """Sends a request and returns its response."""
        number = self.send(method, params, session)
        end = time.monotonic() + seconds
        while True:
            message = self.receive(max(0.1, end - time.monotonic()))
            if message.get("id") == number and "method" not in message:
                return message
