// Forwards HTTP on loopback to a server and adds a token, for clients that cannot send one. Prints its own address.
// All other headers pass unchanged, also `Host` and `Origin`.
// SKEIN_TARGET is the address of the server as HOST:PORT, SKEIN_TOKEN the token.

import { createServer, request } from "node:http";

const [hostname, port] = process.env.SKEIN_TARGET.split(":");
const authorization = `Bearer ${process.env.SKEIN_TOKEN}`;

const server = createServer((incoming, answer) => {
  const { method, url: path } = incoming;
  const headers = { ...incoming.headers, authorization };
  const forwarded = request({ hostname, port, method, path, headers }, (received) => {
    answer.writeHead(received.statusCode, received.headers);
    received.pipe(answer);
    received.on("error", () => answer.destroy());
  });
  forwarded.on("error", () => answer.destroy());
  answer.on("close", () => forwarded.destroy());
  incoming.pipe(forwarded);
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
// It ends with the test that started it.
process.stdin.resume().on("end", () => process.exit(0));
