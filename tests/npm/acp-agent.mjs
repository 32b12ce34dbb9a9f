// An agent made with the TypeScript SDK: `node acp-agent.mjs`. A prompt is a command:
//
//   say WORDS      a chunk for each word
//   read PATH      asks the client for the file, as a tool call, and says what is in it
//   permit TITLE   a tool call, and a question with three answers of its own; says which was chosen
//   hang           says so, and waits until it is cancelled
//
// tests/python/acp_agent.py does the same with the Python SDK.

import { randomUUID } from "node:crypto";
import { Readable, Writable } from "node:stream";
import { agent, methods, ndJsonStream, PROTOCOL_VERSION } from "@agentclientprotocol/sdk";

const { session } = methods.client;
/** What ends a turn that hangs, by session. */
const cancel = new Map();

const OPTIONS = [
  { optionId: "ts-yes", name: "Do it", kind: "allow_once" },
  { optionId: "ts-always", name: "Always do it", kind: "allow_always" },
  { optionId: "ts-no", name: "Leave it", kind: "reject_once" },
];

/** One prompt: the reason of its end. */
async function turn(client, sessionId, text) {
  const update = (update) => client.notify(session.update, { sessionId, update });
  const say = (text) => update({ sessionUpdate: "agent_message_chunk", content: { type: "text", text } });
  const call = (toolCallId, title, kind) =>
    update({ sessionUpdate: "tool_call", toolCallId, title, kind, status: "in_progress" });
  const ended = (toolCallId, status) => update({ sessionUpdate: "tool_call_update", toolCallId, status });
  const [, command, rest] = /^(\S*)\s*(.*)$/s.exec(text);
  const id = `call-${randomUUID()}`;
  switch (command) {
    case "say":
      for (const word of rest.match(/\S+\s*/g) ?? []) await say(word);
      return "end_turn";
    case "read": {
      await call(id, `Read ${rest}`, "read");
      const { content } = await client.request(methods.client.fs.readTextFile, { sessionId, path: rest });
      await ended(id, "completed");
      await say(content);
      return "end_turn";
    }
    case "permit": {
      await call(id, rest, "execute");
      const question = { sessionId, toolCall: { toolCallId: id, title: rest }, options: OPTIONS };
      const { outcome } = await client.request(session.requestPermission, question);
      await ended(id, ["ts-yes", "ts-always"].includes(outcome.optionId) ? "completed" : "failed");
      await say(`chosen ${outcome.optionId ?? outcome.outcome}`);
      return outcome.outcome === "cancelled" ? "cancelled" : "end_turn";
    }
    case "hang": {
      const cancelled = new Promise((resolve) => cancel.set(sessionId, resolve));
      await say("hanging");
      await cancelled;
      return "cancelled";
    }
    default:
      await say(`heard: ${text}`);
      return "end_turn";
  }
}

agent({ name: "skein-test-ts" })
  .onRequest(methods.agent.initialize, () => ({
    protocolVersion: PROTOCOL_VERSION,
    agentInfo: { name: "skein-test-ts", version: "1" },
    agentCapabilities: { loadSession: false },
  }))
  .onRequest(methods.agent.session.new, () => ({ sessionId: randomUUID() }))
  .onRequest(methods.agent.session.prompt, async ({ params, client }) => {
    const text = params.prompt.map((block) => (block.type === "text" ? block.text : `[${block.type}]`)).join(" ");
    return { stopReason: await turn(client, params.sessionId, text) };
  })
  .onNotification(methods.agent.session.cancel, ({ params }) => cancel.get(params.sessionId)?.())
  .connect(ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
