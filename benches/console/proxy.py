"""A proxy on 127.0.0.1 that counts what a browser asks for and what it gets: all connections, also those of workers."""

import asyncio
import re

REQUEST = re.compile(rb"^(GET|POST) (\S+) HTTP/1\.1\r$", re.MULTILINE)


class CountingProxy:
    def __init__(self, port):
        self.server_port, self.paths, self.transferred = port, [], 0

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def serve(self, reader, writer):
        upstream, out = await asyncio.open_connection("127.0.0.1", self.server_port)
        await asyncio.gather(self.pass_on(reader, out, self.count_requests), self.pass_on(upstream, writer, self.count_bytes))

    async def pass_on(self, reader, writer, count):
        try:
            while data := await reader.read(1 << 16):
                count(data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    def count_requests(self, data):
        # The head of a request of a browser comes in one piece.
        self.paths += [path.decode().partition("?")[0] for _, path in REQUEST.findall(data)]

    def count_bytes(self, data):
        self.transferred += len(data)
