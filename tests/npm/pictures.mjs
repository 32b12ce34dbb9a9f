// Makes the pictures of the console: `node pictures.mjs CHROMIUM SKEIN FOLDER`. See scripts/pictures.
import { spawn } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [program, skein, folder] = process.argv.slice(2);
// The pictures show its path, so it has a plain name.
const PROJECT = "/tmp/shop";
const WAIT = { timeout: 90_000 };
const PROMPT = "Round prices to whole cents in price.py";
const OLD = "def total(prices):\n    return sum(prices)\n";
const NEW = "def total(prices):\n    \"\"\"Returns the sum in whole cents.\"\"\"\n    return round(sum(prices), 2)\n";
const REASON = "`total` adds the prices as they are, so errors of the addition show. I round the sum.";

const event = (choice) => `data: ${JSON.stringify({ id: "1", object: "chat.completion.chunk", created: 1, model: "m", ...choice })}\n\n`;
const delta = (content, finish = null) => event({ choices: [{ index: 0, delta: content, finish_reason: finish }] });
const usage = event({ choices: [], usage: { prompt_tokens: 2_412, completion_tokens: 96, total_tokens: 2_508 } });

// The answer of the model: a call that changes the file, then what it did.
function answer(request) {
  if (!request.tools) return null;
  if (request.messages.some(({ role }) => role === "tool")) {
    return [delta({ role: "assistant", content: "`total` now returns whole cents. " }), delta({ content: "Its callers need no change." }), delta({}, "stop")];
  }
  const name = request.tools.map((tool) => tool.function.name).find((tool) => tool.endsWith("write_file"));
  const call = { index: 0, id: "call_1", type: "function", function: { name, arguments: JSON.stringify({ path: "price.py", content: NEW, overwrite: true }) } };
  return [delta({ role: "assistant", content: REASON }), delta({ tool_calls: [call] }), delta({}, "tool_calls")];
}

const model = createServer(async (request, response) => {
  let body = "";
  for await (const piece of request) body += piece;
  const asked = body ? JSON.parse(body) : {};
  const answered = answer(asked);
  if (request.method === "GET" || !answered) {
    const message = { index: 0, finish_reason: "stop", message: { role: "assistant", content: "Round prices" } };
    const title = { id: "1", object: "chat.completion", created: 1, model: "m", choices: [message], usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 } };
    response.setHeader("content-type", asked.stream ? "text/event-stream" : "application/json");
    const pieces = [delta({ role: "assistant", content: "Round prices" }), delta({}, "stop"), usage, "data: [DONE]\n\n"];
    response.end(asked.stream ? pieces.join("") : JSON.stringify(request.method === "GET" ? { object: "list", data: [] } : title));
    return;
  }
  response.setHeader("content-type", "text/event-stream");
  response.end([...answered, usage, "data: [DONE]\n\n"].join(""));
});
await new Promise((done) => model.listen(0, "127.0.0.1", done));

await mkdir(PROJECT);
const home = await mkdtemp(`${tmpdir()}/pictures-`);
await writeFile(`${PROJECT}/price.py`, OLD);
const env = { PATH: process.env.PATH, HOME: home, SHELL: "/bin/bash", OPENAI_API_KEY: "none", OPENAI_BASE_URL: `http://127.0.0.1:${model.address().port}/v1` };
const flags = ["console", "--no-browser", "-a", "goose/assistant", "--approval", "ask", "--model", "openai:gpt-4o", "--port", "0"];
const server = spawn(skein, flags, { cwd: PROJECT, env, stdio: ["ignore", "pipe", "inherit"] });
let browser = null;
try {
  const address = await new Promise((found, failed) => {
    const lines = createInterface({ input: server.stdout });
    lines.on("line", (line) => { const word = line.split(" ").at(-1); if (word.includes("/console/login#")) found(word); });
    lines.on("close", () => failed(new Error("skein console printed no address")));
  });
  const args = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"];
  browser = await chromium.launch({ executablePath: program, headless: true, args });
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: "light" });
  context.setDefaultTimeout(WAIT.timeout);
  const page = await context.newPage();
  const picture = async (name) => {
    // No control has the focus, and the last update is drawn.
    await page.evaluate(() => document.activeElement?.blur());
    await page.waitForTimeout(500);
    await page.screenshot({ path: `${folder}/console-${name}.png` });
    process.stdout.write(`${folder}/console-${name}.png\n`);
  };
  await page.goto(address);
  await page.waitForURL("**/console/sessions");
  const { origin } = new URL(page.url());
  await page.getByText("New session", { exact: true }).click();
  await page.getByLabel("Prompt", { exact: true }).fill(PROMPT);
  await page.getByRole("button", { name: "Open session" }).click();
  await page.waitForURL(/console\/sessions\/\w+$/);
  const session = page.url();
  await page.goto(`${origin}/console/approvals`);
  await page.locator("li[data-state=open]").waitFor(WAIT);
  await picture("approvals");
  await page.getByRole("button", { name: "Allow once" }).click();
  await page.locator("li[data-state=closed]").waitFor(WAIT);
  await page.goto(session);
  await page.locator("#session-state", { hasText: "idle" }).waitFor(WAIT);
  await page.locator("h1", { hasText: "Round prices" }).waitFor(WAIT);
  await page.evaluate(() => scrollTo(0, 0));
  await picture("session");
  await page.goto(`${origin}/console/graph`);
  await picture("graph");
} finally {
  await browser?.close();
  const ended = new Promise((done) => server.once("exit", done));
  if (server.exitCode === null && server.kill()) await ended;
  model.close();
  model.closeAllConnections();
  await rm(PROJECT, { recursive: true });
  await rm(home, { recursive: true });
}
