// The TypeScript SDK as a client of `skein acp`: `node acp-client.mjs SKEIN FOLDER`.
//
// Plays the story that tests/it/acp_clients.rs asks of every client and prints what the SDK's typed handlers received,
// as one JSON object. Judges nothing. This client lends the agent its files, as editors do.

import { spawn } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { Readable, Writable } from "node:stream";
import { client, methods, ndJsonStream, PROTOCOL_VERSION } from "@agentclientprotocol/sdk";

const [program, cwd] = process.argv.slice(2);
const { session } = methods.agent;

/** One process of the agent with one client, which keeps what it is told. */
class Peer {
  updates = [];
  asked = [];
  /** The kind of option that the user chooses. */
  choice = "allow_once";
  /** Settled when a call that runs says something. */
  heard = Promise.withResolvers();

  async with(story) {
    const child = spawn(program, ["acp"], { cwd, stdio: ["pipe", "pipe", "inherit"] });
    const stream = ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
    const app = client({ name: "skein-test" })
      .onNotification(methods.client.session.update, ({ params }) => this.updated(params.update))
      .onRequest(methods.client.session.requestPermission, ({ params }) => this.permit(params))
      .onRequest(methods.client.fs.readTextFile, async ({ params }) => ({
        content: await readFile(params.path, "utf8"),
      }))
      .onRequest(methods.client.fs.writeTextFile, async ({ params }) => {
        await writeFile(params.path, params.content);
        return {};
      });
    const answer = await app.connectWith(stream, async (agent) => {
      const hello = await agent.request(methods.agent.initialize, {
        protocolVersion: PROTOCOL_VERSION,
        clientInfo: { name: "skein-test", version: "1" },
        clientCapabilities: { fs: { readTextFile: true, writeTextFile: true } },
      });
      return story(agent, hello);
    });
    child.stdin.end();
    const code = child.exitCode ?? (await new Promise((ended) => child.on("exit", ended)));
    return { ...answer, exit: code };
  }

  updated(update) {
    this.updates.push(update);
    if (update.sessionUpdate === "tool_call_update" && update.content) this.heard.resolve();
  }

  permit({ toolCall, options }) {
    this.asked.push({ toolCall, kinds: options.map((option) => option.kind) });
    const { optionId } = options.find((option) => option.kind === this.choice);
    return { outcome: { outcome: "selected", optionId } };
  }

  /** What one turn brought: its end, the updates and the questions. */
  async turn(agent, sessionId, text, choice = "allow_once", meanwhile = undefined) {
    this.choice = choice;
    this.heard = Promise.withResolvers();
    const [updates, asked] = [this.updates.length, this.asked.length];
    const ended = agent.request(session.prompt, { sessionId, prompt: [{ type: "text", text }] });
    await meanwhile?.();
    const { stopReason } = await ended;
    return { stopReason, updates: this.updates.slice(updates), asked: this.asked.slice(asked) };
  }
}

const WRITE = '/developer.write_file {"path":"a.txt","content":"x"}';
const EDIT = '/developer.edit_file {"path":"a.txt","edits":[{"before":"x","after":"y"}]}';

const first = new Peer();
const lived = await first.with(async (agent, hello) => {
  const { sessionId, modes } = await agent.request(session.new, { cwd, mcpServers: [] });
  await agent.request(session.setMode, { sessionId, modeId: "goose/specialist" });
  const turn = (...args) => first.turn(agent, sessionId, ...args);
  const read = await turn("read notes.txt");
  const written = await turn(WRITE);
  const refused = await turn(EDIT, "reject_once");
  const edited = await turn(EDIT);
  const cancelled = await turn("run echo began; sleep 60", "allow_once", async () => {
    await first.heard.promise;
    await agent.notify(session.cancel, { sessionId });
  });
  const { sessions } = await agent.request(session.list, { cwd });
  return { hello, sessionId, modes, sessions, turns: { read, written, refused, edited, cancelled } };
});

const second = new Peer();
const loaded = await second.with(async (agent) => {
  const { modes } = await agent.request(session.load, { sessionId: lived.sessionId, cwd, mcpServers: [] });
  const replay = [...second.updates];
  return { modes, replay, next: await second.turn(agent, lived.sessionId, "read a.txt") };
});

console.log(JSON.stringify({ lived, loaded }));
