// The MCP server on stdio that the conformance suite of MCP tests through `skein serve`. It offers the tools, resources
// and prompts that the suite's scenarios for servers ask for, and has no dependencies.

import { createInterface } from "node:readline";

const PNG =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
const WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=";
const PAUSE = 50;

let lastId = 0;
/** Requests of this server that the client has not answered. */
const open = new Map();

const send = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
const notify = (method, params) => send({ method, params });
const pause = () => new Promise((resolve) => setTimeout(resolve, PAUSE));
const text = (words) => ({ content: [{ type: "text", text: words }] });

/** Sends a request to the client. Fails if the client refuses it. */
function ask(method, params) {
  const id = `ask-${++lastId}`;
  return new Promise((resolve, reject) => {
    open.set(id, { resolve, reject });
    send({ id, method, params });
  });
}

/** Asks the user of the client to fill in a form. */
const elicit = (message, properties, required) =>
  ask("elicitation/create", { message, requestedSchema: { type: "object", properties, required } });

const outcome = (answer) =>
  text(`Elicitation completed: action=${answer.action}, content=${JSON.stringify(answer.content ?? {})}`);

const titled = (names) => names.map(([value, title]) => ({ const: value, title }));
const choices = { type: "string", enum: ["option1", "option2", "option3"] };

const richSchema = {
  $schema: "https://json-schema.org/draft/2020-12/schema",
  type: "object",
  $defs: {
    address: {
      $anchor: "addressDef",
      type: "object",
      properties: { street: { type: "string" }, city: { type: "string" } },
    },
  },
  properties: {
    name: { type: "string" },
    address: { $ref: "#/$defs/address" },
    contactMethod: { type: "string", enum: ["phone", "email"] },
    phone: { type: "string" },
    email: { type: "string" },
  },
  allOf: [{ anyOf: [{ required: ["phone"] }, { required: ["email"] }] }],
  if: { properties: { contactMethod: { const: "phone" } }, required: ["contactMethod"] },
  then: { required: ["phone"] },
  else: { required: ["email"] },
  additionalProperties: false,
};

const none = { type: "object", properties: {} };
const words = (name) => ({ type: "object", properties: { [name]: { type: "string" } }, required: [name] });

/** Each tool: its schema, and the handler of its calls. */
const tools = {
  test_simple_text: [none, () => text("This is a simple text response for testing.")],
  test_image_content: [none, () => ({ content: [{ type: "image", data: PNG, mimeType: "image/png" }] })],
  test_audio_content: [none, () => ({ content: [{ type: "audio", data: WAV, mimeType: "audio/wav" }] })],
  test_embedded_resource: [
    none,
    () => ({
      content: [
        {
          type: "resource",
          resource: {
            uri: "test://embedded-resource",
            mimeType: "text/plain",
            text: "This is an embedded resource content.",
          },
        },
      ],
    }),
  ],
  test_multiple_content_types: [
    none,
    () => ({
      content: [
        { type: "text", text: "Multiple content types test:" },
        { type: "image", data: PNG, mimeType: "image/png" },
        {
          type: "resource",
          resource: {
            uri: "test://mixed-content-resource",
            mimeType: "application/json",
            text: JSON.stringify({ test: "data", value: 123 }),
          },
        },
      ],
    }),
  ],
  test_tool_with_logging: [
    none,
    async () => {
      for (const data of ["Tool execution started", "Tool processing data", "Tool execution completed"]) {
        notify("notifications/message", { level: "info", data });
        await pause();
      }
      return text("Tool with logging executed successfully");
    },
  ],
  test_logging_tool: [
    none,
    () => {
      notify("notifications/message", { level: "info", data: "a message that nobody asked for" });
      return text("logged");
    },
  ],
  test_error_handling: [
    none,
    () => ({ isError: true, ...text("This tool intentionally returns an error for testing") }),
  ],
  test_tool_with_progress: [
    none,
    async (_, token) => {
      for (const progress of [0, 50, 100]) {
        if (token !== undefined) {
          notify("notifications/progress", { progressToken: token, progress, total: 100 });
        }
        await pause();
      }
      return text("Tool with progress executed successfully");
    },
  ],
  test_reconnection: [
    none,
    async () => {
      await pause();
      return text("Reconnection test completed");
    },
  ],
  test_sampling: [
    words("prompt"),
    async ({ prompt }) => {
      const messages = [{ role: "user", content: { type: "text", text: prompt } }];
      const answer = await ask("sampling/createMessage", { messages, maxTokens: 100 });
      return text(`LLM response: ${answer.content.text}`);
    },
  ],
  test_elicitation: [
    words("message"),
    async ({ message }) => {
      const fields = {
        username: { type: "string", description: "User's response" },
        email: { type: "string", description: "User's email address" },
      };
      const answer = await elicit(message, fields, ["username", "email"]);
      return text(`User response: action=${answer.action}, content=${JSON.stringify(answer.content ?? {})}`);
    },
  ],
  test_elicitation_sep1034_defaults: [
    none,
    async () =>
      outcome(
        await elicit("Please review and update the form fields with defaults", {
          name: { type: "string", default: "John Doe" },
          age: { type: "integer", default: 30 },
          score: { type: "number", default: 95.5 },
          status: { type: "string", enum: ["active", "inactive", "pending"], default: "active" },
          verified: { type: "boolean", default: true },
        }),
      ),
  ],
  test_elicitation_sep1330_enums: [
    none,
    async () => {
      const values = titled([
        ["value1", "First Option"],
        ["value2", "Second Option"],
        ["value3", "Third Option"],
      ]);
      return outcome(
        await elicit("Please select options from the enum fields", {
          untitledSingle: choices,
          titledSingle: { type: "string", oneOf: values },
          legacyEnum: {
            type: "string",
            enum: ["opt1", "opt2", "opt3"],
            enumNames: ["Option One", "Option Two", "Option Three"],
          },
          untitledMulti: { type: "array", items: choices },
          titledMulti: { type: "array", items: { anyOf: values } },
        }),
      );
    },
  ],
  test_streaming_elicitation: [
    none,
    async () => outcome(await elicit("Do you continue?", { ok: { type: "boolean" } }, ["ok"])),
  ],
  test_input_required_result_elicitation: [
    none,
    async () => {
      const answer = await elicit("What is your name?", { name: { type: "string" } }, ["name"]);
      return text(`Hello, ${answer.content?.name ?? answer.action}!`);
    },
  ],
  test_input_required_result_multi_round: [
    none,
    async () => {
      const name = await elicit("Step 1: What is your name?", { name: { type: "string" } }, ["name"]);
      const color = await elicit("Step 2: What is your favorite color?", { color: { type: "string" } }, ["color"]);
      return text(`${name.content?.name} likes ${color.content?.color}`);
    },
  ],
  json_schema_2020_12_tool: [richSchema, (given) => text(JSON.stringify(given))],
  test_custom_headers: [
    {
      type: "object",
      properties: {
        region: { type: "string", "x-mcp-header": "Region" },
        query: { type: "string" },
      },
    },
    (given) => text(JSON.stringify(given)),
  ],
};

const described = (name, about, mimeType) => ({ name, description: about, mimeType });
const resources = {
  "test://static-text": {
    ...described("Static text", "A static text resource for testing", "text/plain"),
    text: "This is the content of the static text resource.",
  },
  "test://static-binary": {
    ...described("Static binary", "A static binary resource for testing", "image/png"),
    blob: PNG,
  },
  "test://watched-resource": {
    ...described("Watched resource", "A resource that clients subscribe to", "text/plain"),
    text: "Watched resource content.",
  },
};

const message = (content) => ({ role: "user", content });
const said = (words) => message({ type: "text", text: words });
const argument = (name, about) => ({ name, description: about, required: true });

/** Each prompt: its arguments, and its messages. */
const prompts = {
  test_simple_prompt: [[], () => [said("This is a simple prompt for testing.")]],
  test_prompt_with_arguments: [
    [argument("arg1", "First test argument"), argument("arg2", "Second test argument")],
    ({ arg1, arg2 }) => [said(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`)],
  ],
  test_prompt_with_embedded_resource: [
    [argument("resourceUri", "URI of the resource to embed")],
    ({ resourceUri }) => [
      message({
        type: "resource",
        resource: { uri: resourceUri, mimeType: "text/plain", text: "Embedded resource content for testing." },
      }),
      said("Please process the embedded resource above."),
    ],
  ],
  test_prompt_with_image: [
    [],
    () => [message({ type: "image", data: PNG, mimeType: "image/png" }), said("Please analyze the image above.")],
  ],
  test_input_required_result_prompt: [
    [],
    async () => {
      const fields = { context: { type: "string" } };
      const answer = await elicit("What context should the prompt use?", fields, ["context"]);
      return [said(`Use this context: ${answer.content?.context ?? "none"}`)];
    },
  ],
};

class Refusal extends Error {
  constructor(code, problem, data) {
    super(problem);
    this.code = code;
    this.data = data;
  }
}

function readResource(uri) {
  const known = resources[uri];
  const id = /^test:\/\/template\/([^/]+)\/data$/.exec(uri)?.[1];
  if (known) {
    const { mimeType, text: body, blob } = known;
    return { contents: [body === undefined ? { uri, mimeType, blob } : { uri, mimeType, text: body }] };
  }
  if (id) {
    const data = { id, templateTest: true, data: `Data for ID: ${id}` };
    return { contents: [{ uri, mimeType: "application/json", text: JSON.stringify(data) }] };
  }
  throw new Refusal(-32002, "Resource not found", { uri });
}

const handlers = {
  initialize: ({ protocolVersion }) => ({
    protocolVersion,
    capabilities: { tools: {}, resources: { subscribe: true }, prompts: {}, logging: {}, completions: {} },
    serverInfo: { name: "conformance", version: "1.0.0" },
  }),
  ping: () => ({}),
  "logging/setLevel": () => ({}),
  "tools/list": () => ({
    tools: Object.entries(tools).map(([name, [inputSchema]]) => ({
      name,
      description: `The tool ${name} of the suite`,
      inputSchema,
    })),
  }),
  "tools/call": ({ name, arguments: given, _meta }) => {
    const tool = tools[name];
    if (!tool) throw new Refusal(-32602, `there is no tool ${name}`);
    return tool[1](given ?? {}, _meta?.progressToken);
  },
  "resources/list": () => ({
    resources: Object.entries(resources).map(([uri, { name, description, mimeType }]) => ({
      uri,
      name,
      description,
      mimeType,
    })),
  }),
  "resources/templates/list": () => ({
    resourceTemplates: [
      {
        uriTemplate: "test://template/{id}/data",
        ...described("Template", "A resource with a parameter", "application/json"),
      },
    ],
  }),
  "resources/read": ({ uri }) => readResource(uri),
  "resources/subscribe": () => ({}),
  "resources/unsubscribe": () => ({}),
  "prompts/list": () => ({
    prompts: Object.entries(prompts).map(([name, [needed]]) => ({
      name,
      description: `The prompt ${name} of the suite`,
      arguments: needed,
    })),
  }),
  "prompts/get": async ({ name, arguments: given }) => {
    const prompt = prompts[name];
    if (!prompt) throw new Refusal(-32602, `there is no prompt ${name}`);
    return { messages: await prompt[1](given ?? {}) };
  },
  "completion/complete": ({ argument: { value } }) => {
    const values = ["paris", "park", "party"].filter((word) => word.startsWith(value));
    return { completion: { values, total: values.length, hasMore: false } };
  },
};

async function answer({ id, method, params }) {
  try {
    const handler = handlers[method];
    if (!handler) throw new Refusal(-32601, `unknown method ${method}`);
    send({ id, result: await handler(params ?? {}) });
  } catch (problem) {
    send({ id, error: { code: problem.code ?? -32603, message: problem.message, data: problem.data } });
  }
}

createInterface({ input: process.stdin }).on("line", (line) => {
  const received = JSON.parse(line);
  if (received.method !== undefined) {
    if (received.id !== undefined) answer(received);
    return;
  }
  const waiting = open.get(received.id);
  open.delete(received.id);
  if (received.error) waiting?.reject(new Refusal(received.error.code, received.error.message));
  else waiting?.resolve(received.result);
});
