"""ACP clients of the soak test, on stdio and over WebSocket."""

import asyncio
import collections
import json
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "acp"))

from remote_client import UPDATE, RemoteClient, RemoteError, WebSocketClient  # noqa: E402

# Seconds that a request may take. Skein waits between attempts to reach a model that fails.
PATIENCE = 90
__all__ = ["PATIENCE", "RemoteError", "SocketClient", "StdioClient"]


class Listener(RemoteClient):
    """Answers permission requests, and keeps the prompts and answers of each session until they are taken."""

    problem = None

    def __init__(self, address, headers):
        super().__init__(address, headers)
        # By session, and by the kind of the update.
        self.texts = collections.defaultdict(lambda: collections.defaultdict(list))

    def take(self, text):
        try:
            if UPDATE in text:
                if b'_message_chunk"' in text:
                    params = json.loads(text)["params"]
                    update = params["update"]
                    self.texts[params["sessionId"]][update["sessionUpdate"]].append(update["content"].get("text", ""))
                return
            message = json.loads(text)
        except ValueError as error:
            self.problem = f"a line that is not JSON: {text[:200]!r}: {error}"
            return
        if "method" in message:
            if message.get("id") is not None:
                asyncio.create_task(self.permit(message))
        elif answer := self.answers.pop(message.get("id"), None):
            if not answer.done():
                answer.set_result(message)

    async def permit(self, message):
        options = message.get("params", {}).get("options", [])
        allow = next((option["optionId"] for option in options if option["kind"] == "allow_once"), None)
        if allow is None:
            reply = {"error": {"code": -32601, "message": "not offered"}}
        else:
            reply = {"result": {"outcome": {"outcome": "selected", "optionId": allow}}}
        try:
            await self.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}).encode())
        except (RemoteError, OSError):
            pass

    async def call(self, method, **params):
        """The result of a request. Fails if there is none in time."""
        try:
            return await asyncio.wait_for(self.request(method, **params), PATIENCE)
        except asyncio.TimeoutError:
            self.problem = f"{method} was not answered within {PATIENCE} s"
            raise RemoteError(self.problem) from None
        except OSError as error:
            raise RemoteError(str(error)) from None

    def take_texts(self, session):
        """What the user and the agent have said in a session since the last time, as two texts."""
        texts = self.texts.pop(session, {})
        return tuple("".join(texts.get(f"{role}_message_chunk", [])) for role in ("user", "agent"))

    async def load(self, session, cwd):
        """The prompts and the answers of a stored session, as two texts."""
        self.take_texts(session)
        await self.call("session/load", sessionId=session, cwd=cwd, mcpServers=[])
        return self.take_texts(session)

    async def sessions(self):
        """The ids of all stored sessions."""
        found, cursor = [], {}
        while True:
            page = await self.call("session/list", **cursor)
            found += [session["sessionId"] for session in page["sessions"]]
            if not page.get("nextCursor"):
                return found
            cursor = {"cursor": page["nextCursor"]}


class SocketClient(Listener, WebSocketClient):
    """A client of `skein serve`."""


class StdioClient(Listener):
    """`skein acp` and its client."""

    def __init__(self, command, env, cwd, errors):
        super().__init__(None, [])
        self.command, self.env, self.cwd, self.errors = command, env, cwd, errors

    async def open(self):
        pipe = asyncio.subprocess.PIPE
        # Python ignores SIGXFSZ and leaves that to the program, so that a file size limit is an error and not a death.
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            env=self.env,
            cwd=self.cwd,
            stdin=pipe,
            stdout=pipe,
            stderr=self.errors,
            restore_signals=False,
            limit=1 << 26,
        )
        self.reader = asyncio.create_task(self.listen())

    async def listen(self):
        try:
            while line := await self.process.stdout.readline():
                self.take(line)
        except (ValueError, ConnectionError) as error:
            self.problem = str(error)
        self.lose()

    async def send(self, text):
        try:
            self.process.stdin.write(text + b"\n")
            await self.process.stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            raise RemoteError(str(error)) from None

    async def close(self):
        """Ends the input, and returns the exit code."""
        self.process.stdin.close()
        return await self.ended()

    async def end(self, number):
        """Sends a signal, and returns the exit code."""
        try:
            self.process.send_signal(number)
        except ProcessLookupError:
            pass
        return await self.ended()

    async def ended(self):
        """The exit code. A program that does not end within 60 seconds is killed, and the answer is a text. A server
        waits 30 seconds for its turns."""
        try:
            code = await asyncio.wait_for(self.process.wait(), 60)
        except asyncio.TimeoutError:
            self.process.send_signal(signal.SIGKILL)
            await self.process.wait()
            code = "it did not end within 60 s"
        await self.reader
        return code
