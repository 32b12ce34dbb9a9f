"""ACP clients over WebSocket and over HTTP with event streams, thousands in one thread. Standard library only.

Nothing is parsed while a stream is measured: a client notes when chunks arrive and counts their words as bytes.
"""

import asyncio
import json
import time

CHUNK, UPDATE, WORD = b'"agent_message_chunk"', b'"session/update"', b"word "
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
CAPABILITIES = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}


class RemoteError(Exception):
    """The server refused a request or closed a connection."""


class RemoteClient:
    """What both transports have in common: requests, and the arrival of chunks."""

    def __init__(self, address, headers):
        self.address, self.headers = address, headers
        self.ids, self.answers, self.closed = 0, {}, False
        self.arrivals, self.words = [], 0

    async def start(self):
        await self.open()
        await self.request("initialize", protocolVersion=1, clientCapabilities=CAPABILITIES)

    async def session(self, cwd):
        result = await self.request("session/new", cwd=cwd, mcpServers=[])
        self.session_id = result["sessionId"]
        await self.subscribe(self.session_id)

    async def prompt(self, text, words=0):
        """Returns the seconds until the answer has ended. Fails if it has another number of words."""
        self.arrivals, self.words = [], 0
        sent = time.monotonic()
        prompt = [{"type": "text", "text": text}]
        result = await self.request("session/prompt", sessionId=self.session_id, prompt=prompt)
        took = time.monotonic() - sent
        if result["stopReason"] != "end_turn" or self.words != words:
            raise RemoteError(f"{result['stopReason']} after {self.words} words instead of {words}")
        return took

    def gaps(self):
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:])]

    async def request(self, method, **params):
        if self.closed:
            raise RemoteError("the connection is closed")
        self.ids += 1
        answer = self.answers[self.ids] = asyncio.get_running_loop().create_future()
        await self.send(json.dumps({"jsonrpc": "2.0", "id": self.ids, "method": method, "params": params}).encode())
        message = await asyncio.wait_for(answer, 300)
        if "error" in message:
            raise RemoteError(f"{method}: {message['error']}")
        return message["result"]

    def take(self, text):
        """Takes one message of the server."""
        if UPDATE in text:
            if CHUNK in text:
                self.arrivals.append(time.monotonic())
                self.words += text.count(WORD)
            return
        message = json.loads(text)
        if "method" not in message and (answer := self.answers.pop(message["id"], None)):
            answer.set_result(message)

    def lose(self):
        """Ends all requests, because the connection is closed."""
        self.closed = True
        for answer in self.answers.values():
            if not answer.done():
                answer.set_exception(RemoteError("the server closed the connection"))
        self.answers.clear()

    async def subscribe(self, session):
        """Opens the stream of a session, if the transport has one."""

    def head(self, method, path, *more):
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.address[0]}:{self.address[1]}", *self.headers, *more]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


class WebSocketClient(RemoteClient, asyncio.Protocol):
    """One connection with one JSON message in each frame."""

    async def open(self):
        loop = asyncio.get_running_loop()
        self.buffer, self.is_open, self.opened = b"", False, loop.create_future()
        self.transport, _ = await loop.create_connection(lambda: self, *self.address)
        upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
        self.transport.write(self.head("GET", "/acp", *upgrade, "Sec-WebSocket-Key: c2tlaW4gYmVuY2htYXJrIQ=="))
        await self.opened

    async def send(self, text):
        self.frame(TEXT, text)

    async def close(self):
        if not self.closed:
            self.frame(CLOSE, b"\x03\xe8")
            self.transport.close()

    def frame(self, kind, payload):
        """Sends a frame with a mask of zeros, which leaves the payload as it is."""
        size = len(payload)
        if size < 126:
            head = bytes([0x80 | kind, 0x80 | size])
        elif size < 1 << 16:
            head = bytes([0x80 | kind, 0x80 | 126]) + size.to_bytes(2, "big")
        else:
            head = bytes([0x80 | kind, 0x80 | 127]) + size.to_bytes(8, "big")
        self.transport.write(head + bytes(4) + payload)

    def data_received(self, data):
        self.buffer += data
        if not self.is_open:
            head, found, rest = self.buffer.partition(b"\r\n\r\n")
            if not found:
                return
            if b" 101 " not in head.split(b"\r\n")[0]:
                self.opened.set_exception(RemoteError(head.split(b"\r\n")[0].decode()))
                return
            self.is_open, self.buffer = True, rest
            self.opened.set_result(None)
        at = 0
        while (frame := self.next_frame(at)) is not None:
            kind, begin, at = frame
            if kind == TEXT:
                self.take(self.buffer[begin:at])
            elif kind == PING:
                self.frame(PONG, self.buffer[begin:at])
        self.buffer = self.buffer[at:]

    def next_frame(self, at):
        """The kind of the frame at a position, and where its payload begins and ends. None if it is not whole."""
        if len(self.buffer) < at + 2:
            return None
        kind, size, begin = self.buffer[at] & 15, self.buffer[at + 1] & 127, at + 2
        if size >= 126:
            wide = 2 if size == 126 else 8
            size, begin = int.from_bytes(self.buffer[begin : begin + wide], "big"), begin + wide
        return (kind, begin, begin + size) if len(self.buffer) >= begin + size else None

    def connection_lost(self, _):
        if not self.opened.done():
            self.opened.set_exception(RemoteError("the server closed the connection"))
        self.lose()


class HttpClient(RemoteClient):
    """Messages are posted; what the server says arrives on the stream of the connection and of each session."""

    async def open(self):
        self.connection, self.tasks, self.writers = None, [], []
        self.reader, self.writer = await self.connect()
        self.posting = asyncio.Lock()

    async def connect(self):
        reader, writer = await asyncio.open_connection(*self.address)
        self.writers.append(writer)
        return reader, writer

    async def send(self, text):
        more = ["Content-Type: application/json", f"Content-Length: {len(text)}"]
        if self.connection:
            more.append(f"Acp-Connection-Id: {self.connection}")
        async with self.posting:
            self.writer.write(self.head("POST", "/acp", *more) + text)
            status, headers = await self.answer_head(self.reader)
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        if status not in (200, 202):
            raise RemoteError(f"POST: {status} {body.decode()}")
        if not self.connection:
            self.connection = headers["acp-connection-id"]
            self.take(body)
            await self.subscribe(None)

    async def subscribe(self, session):
        more = ["Accept: text/event-stream", f"Acp-Connection-Id: {self.connection}"]
        if session:
            more.append(f"Acp-Session-Id: {session}")
        reader, writer = await self.connect()
        writer.write(self.head("GET", "/acp", *more))
        status, _ = await self.answer_head(reader)
        if status != 200:
            raise RemoteError(f"GET: {status}")
        self.tasks.append(asyncio.create_task(self.listen(reader)))

    async def answer_head(self, reader):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.partition(": ") for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value for name, _, value in pairs}

    async def listen(self, reader):
        """Takes the events of a stream, which is sent in chunks."""
        text = b""
        try:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                text += (await reader.readexactly(size + 2))[:-2]
                *events, text = text.split(b"\n\n")
                for event in events:
                    if event.startswith(b"data: "):
                        self.take(event[6:])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        self.lose()

    async def close(self):
        self.closed = True
        for task in self.tasks:
            task.cancel()
        for writer in self.writers:
            writer.close()
