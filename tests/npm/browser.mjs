// Apps in Chromium: `node browser.mjs CHROMIUM STORY URL… [FOLDER]`. It judges nothing and prints what was seen as JSON.
import { readFile } from "node:fs/promises";
import { createSocket } from "node:dgram";
import { once } from "node:events";
import { createServer } from "node:net";
import { AppBridge } from "@modelcontextprotocol/ext-apps/app-bridge";
import { chromium } from "playwright-core";

const [program, story, ...rest] = process.argv.slice(2);
const quiet = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update", "--disable-sync",
  "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"];
// It would turn off hints such as `preconnect`, which users' browsers follow; the rule above keeps the browser on this machine.
const heard = ["--disable-background-networking"];

// A server on this machine that counts who comes, and what is asked of it.
async function listen() {
  const seen = { connections: 0, requests: [] };
  const server = createServer((socket) => {
    seen.connections += 1;
    socket.on("error", () => {});
    socket.once("data", (data) => {
      seen.requests.push(data.toString("latin1").split("\r\n")[0]);
      socket.end("HTTP/1.1 200 OK\r\naccess-control-allow-origin: *\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
    });
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  return { seen, server, port: server.address().port };
}

// What counts datagrams, and a page that sends some to it.
async function calls() {
  const socket = createSocket("udp4");
  const seen = { count: 0 };
  socket.on("message", () => { seen.count += 1; });
  socket.bind(0, "127.0.0.1");
  await once(socket, "listening");
  const script = `const c = new RTCPeerConnection({ iceServers: [{ urls: "stun:127.0.0.1:${socket.address().port}" }] });
    c.createDataChannel("x"); c.createOffer().then((offer) => c.setLocalDescription(offer));`;
  return { seen, socket, html: `<script>${script}</script>` };
}

// As a host of MCP Apps shows a resource: in a frame of its own.
async function host(page, html) {
  await page.setContent(`<iframe sandbox="allow-scripts"></iframe>`);
  await page.evaluate((html) => { document.querySelector("iframe").srcdoc = html; }, html);
}

const stories = {
  async timer(page, [url, folder]) {
    await page.clock.install({ time: new Date("2026-11-15T09:00:00Z") });
    await page.goto(url);
    // From here on time passes only when it is told to, however long the browser takes.
    await page.clock.pauseAt(new Date("2026-11-15T10:00:00Z"));
    const app = page.frameLocator("iframe");
    const time = () => app.locator("#time").textContent();
    const button = (name) => app.getByRole("button", { name, exact: true });
    const seen = { title: await page.title(), steps: [] };
    // Frames hear of the new time one after the other: what is expected is waited for, and what is there is told.
    const step = async (what, expected) => {
      await app.locator("#time", { hasText: expected }).waitFor({ timeout: 10_000 }).catch(() => {});
      seen.steps.push([what, await time(), await app.locator("#toggle").textContent()]);
    };
    await step("opened", "05:00");
    await button("1 min").click();
    await button("Start").click();
    await page.clock.runFor(13_000);
    await step("13 s later", "00:47");
    await page.screenshot({ path: `${folder}/timer.png` });
    await button("Pause").click();
    await page.clock.runFor(60_000);
    await step("paused for a minute", "00:47");
    await button("Go on").click();
    await page.clock.runFor(7_000);
    await step("went on for 7 s", "00:40");
    await button("Reset").click();
    await step("reset", "01:00");
    await button("Start").click();
    await page.clock.runFor(61_000);
    await step("to its end", "00:00");
    seen.state = await app.locator("#state").textContent();
    await page.emulateMedia({ colorScheme: "dark" });
    await page.setViewportSize({ width: 320, height: 480 });
    await page.screenshot({ path: `${folder}/timer-small-dark.png` });
    return seen;
  },

  async kanban(page, [url, folder]) {
    await page.goto(url);
    const app = page.frameLocator("iframe");
    const lanes = async () => Object.fromEntries(await Promise.all(["todo", "doing", "done"].map(async (lane) =>
      [lane, await app.locator(`#${lane} li > span`).allTextContents()])));
    const seen = {};
    for (const text of ["Write the test", "Make it pass", "<b>Bold</b>"]) {
      await app.getByLabel("New card").fill(text);
      await app.getByRole("button", { name: "Add", exact: true }).click();
    }
    seen.added = await lanes();
    await app.getByRole("button", { name: "Move to Doing: Write the test" }).click();
    await app.getByRole("button", { name: "Move to Done: Write the test" }).click();
    seen.moved = await lanes();
    await app.locator("#todo li", { hasText: "Make it pass" }).dragTo(app.locator("#doing"));
    seen.dragged = await lanes();
    await page.screenshot({ path: `${folder}/kanban.png` });
    await page.reload();
    seen.reloaded = await lanes();
    await app.getByRole("button", { name: "Remove: <b>Bold</b>" }).click();
    await app.getByRole("button", { name: "Add", exact: true }).click();
    seen.removed = await lanes();
    seen.message = await app.locator("#message").textContent();
    await page.goto("about:blank");
    await page.goto(url);
    seen.opened_again = await lanes();
    await page.emulateMedia({ colorScheme: "dark" });
    await page.setViewportSize({ width: 360, height: 640 });
    await page.screenshot({ path: `${folder}/kanban-small-dark.png` });
    return seen;
  },

  // Two apps side by side: what one keeps the other does not see.
  async storage(page, [one, other]) {
    const said = () => page.frameLocator("iframe").locator("#said:not(:empty)").textContent();
    // The frame sends what it keeps to its host, which may be another process: wait until the host has it.
    const stored = async () => {
      const kept = await page.frames()[1].evaluate(() =>
        JSON.stringify(Array.from(localStorage, (_, index) => {
          const key = localStorage.key(index);
          return [key, localStorage.getItem(key)];
        })));
      await page.waitForFunction((kept) => Object.values(localStorage).includes(kept), kept);
    };
    await page.goto(one);
    const seen = { first: await said() };
    await stored();
    await page.reload();
    seen.again = await said();
    await page.goto(other);
    seen.other = await said();
    return seen;
  },

  // A page that does what it must not. It tells the violations it heard of, and whatever else it found out.
  async hostile(page, [url, expected]) {
    const { seen, server, port } = await listen();
    await page.goto(url);
    const frame = page.frames()[1];
    await frame.evaluate((origin) => window.attack(origin), `http://127.0.0.1:${port}`);
    await frame.waitForFunction((count) => window.heard.size >= count, Number(expected));
    const found = await frame.evaluate(() => ({ violations: [...window.heard].sort(), said: window.said }));
    const before = { ...seen, requests: [...seen.requests] };
    await fetch(`http://127.0.0.1:${port}/control`);
    server.close();
    return { ...found, ...before, control: seen.requests.slice(before.requests.length) };
  },

  // A page that goes away: its frame ends at an error page and nothing was asked of the server.
  async leaving(page, [url, ...ways]) {
    const { seen, server, port } = await listen();
    const ends = {};
    for (const way of ways) {
      await page.goto("about:blank");
      await page.goto(url);
      const frame = page.frames()[1];
      const gone = page.waitForEvent("framenavigated", (navigated) => navigated === frame && frame.url() !== "about:srcdoc");
      // The frame may be gone before it can answer.
      await frame.evaluate(([way, origin]) => { setTimeout(() => window.leave[way](origin), 0); }, [way, `http://127.0.0.1:${port}`]);
      await gone;
      ends[way] = [frame.url(), page.url() === url];
    }
    const requests = [...seen.requests];
    await fetch(`http://127.0.0.1:${port}/control`);
    server.close();
    return { ends, requests, control: seen.requests.slice(requests.length) };
  },

  // A page that tries to call, each way from a fresh start; and one that may.
  async calls(page, [place, ...ways]) {
    const [attacked, control] = [await calls(), await calls()];
    const ends = {};
    for (const way of ways) {
      await page.goto("about:blank");
      if (place.startsWith("file:")) await page.goto(place);
      else await host(page, await readFile(place, "utf8"));
      const said = page.frameLocator("iframe").first().locator("#said");
      await said.waitFor({ state: "attached" });
      // The page spoils what answers here, so it says how it went in its own text.
      await page.frames()[1].waitForFunction(() => window.call);
      await page.frames()[1].evaluate(([way, html]) => { setTimeout(() => window.call(way, html), 0); }, [way, attacked.html]);
      ends[way] = await said.filter({ hasText: /./ }).textContent();
    }
    const called = once(control.socket, "message");
    await page.goto("about:blank");
    await host(page, control.html);
    await called;
    for (const { socket } of [attacked, control]) socket.close();
    return { ends, datagrams: attacked.seen.count, control: control.seen.count };
  },

  // A page that tells the browser where it will go.
  async hints(page, [url]) {
    const { seen, server, port } = await listen();
    await page.goto(url);
    const came = once(server, "connection");
    await page.frames()[1].evaluate((origin) => window.hint(origin), `http://127.0.0.1:${port}`);
    await came;
    server.close();
    return seen;
  },

  async hosted(page, [file, selector, expected]) {
    const html = await readFile(file, "utf8");
    const { seen, server, port } = await listen();
    await host(page, html);
    const text = await page.frameLocator("iframe").locator(selector).textContent();
    const frame = page.frames()[1];
    await frame.evaluate((origin) => window.attack(origin), `http://127.0.0.1:${port}`);
    await frame.waitForFunction((count) => window.heard.size >= count, Number(expected));
    server.close();
    return { text, ...seen };
  },

  // The SDK's own host shows the view for a call, and reads what the view asks for.
  async view(page, [file, selector]) {
    const { view, result, resources } = JSON.parse(await readFile(file, "utf8"));
    const bridge = new AppBridge(null, { name: "host", version: "1" }, { serverResources: {} });
    const seen = { read: [], text: null };
    bridge.onreadresource = async ({ uri }) => { seen.read.push(uri); return resources[uri]; };
    const sized = new Promise((resolve) => { bridge.onsizechange = resolve; });
    const greeted = new Promise((resolve) => { bridge.oninitialized = resolve; });
    const transport = {
      start: async () => {},
      close: async () => {},
      send: (message) => page.evaluate((message) => document.querySelector("iframe").contentWindow.postMessage(message, "*"), message),
    };
    await page.exposeFunction("heard", (message) => transport.onmessage(message));
    await page.setContent(`<body style="margin: 0"><iframe sandbox="allow-scripts allow-forms" style="border: 0; width: 700px; height: 540px"></iframe>`);
    await page.evaluate(() => addEventListener("message", (event) => window.heard(event.data)));
    await bridge.connect(transport);
    await page.evaluate((view) => { document.querySelector("iframe").srcdoc = view; }, view);
    await greeted;
    await bridge.sendToolInput({ arguments: { name: "timer" } });
    await bridge.sendToolResult(result);
    seen.text = await page.frameLocator("iframe").frameLocator("iframe").locator(selector).textContent();
    seen.size = await sized;
    seen.app = bridge.getAppVersion();
    await bridge.teardownResource({});
    return seen;
  },

  // An app that may reach one server, and tries another.
  async network(page, [url, allowed, other]) {
    await page.goto(url);
    const frame = page.frames()[1];
    const get = (address) => frame.evaluate((address) =>
      fetch(address).then((answer) => answer.text(), () => "refused"), address);
    return { allowed: await get(allowed), other: await get(other) };
  },
};

// A profile, as users have one: without it hints are not followed either.
const look = { viewport: { width: 760, height: 560 }, colorScheme: "light" };
const launch = { executablePath: program, headless: true, args: quiet, ignoreDefaultArgs: heard };
const browser = await chromium.launchPersistentContext("", { ...launch, ...look });
try {
  const page = await browser.newPage();
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  const seen = await stories[story](page, rest);
  process.stdout.write(JSON.stringify({ ...seen, problems }));
} finally {
  await browser.close();
}
