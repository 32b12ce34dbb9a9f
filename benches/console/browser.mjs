// Looks at the console in Chromium: `node browser.mjs CHROMIUM`. Each line of the input is a request as JSON, and each line
// of the output is the answer to it. It judges nothing. Times are milliseconds, moments are those of the system's clock.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { chromium } = createRequire(new URL("../../tests/npm/package.json", import.meta.url))("playwright-core");
const [program] = process.argv.slice(2);
const args = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-component-update", "--disable-sync",
  "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"];
const TIMEOUT = 120_000;
const tabs = new Map();

// Notes when words and calls of a session are on the screen. A frame that is drawn takes everything that changed before.
function stampUpdates() {
  const stamps = { words: {}, calls: [], frames: [] };
  const waiting = [];
  const moment = () => performance.timeOrigin + performance.now();
  let words = 0;
  let calls = document.querySelectorAll("#transcript .entry.call").length;
  const look = () => {
    const text = document.querySelector("#live").textContent;
    for (const [, number] of text.matchAll(/w(\d+) /g)) if (Number(number) >= words) { words = Number(number) + 1; waiting.push(words - 1); }
    const shown = document.querySelectorAll("#transcript .entry.call").length;
    for (; calls < shown; calls += 1) waiting.push("call");
  };
  const observer = new MutationObserver(look);
  for (const place of ["#live", "#transcript"]) {
    observer.observe(document.querySelector(place), { childList: true, subtree: true, characterData: true });
  }
  const channel = new MessageChannel();
  let before = null;
  // The message arrives behind the frame in which it was sent.
  channel.port1.onmessage = () => {
    const now = moment();
    for (const what of waiting.splice(0)) {
      if (what === "call") stamps.calls.push(now);
      else stamps.words[what] = now;
    }
  };
  const frame = (now) => {
    if (before !== null) stamps.frames.push(now - before);
    before = now;
    channel.port2.postMessage(null);
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
  window.stamps = stamps;
}

const requests = {
  // A browser with its own cookies and cache, which logs in.
  async open({ tab, origin, token }) {
    const browser = await chromium.launch({ executablePath: program, headless: true, args });
    const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
    context.setDefaultTimeout(TIMEOUT);
    const page = await context.newPage();
    const hosts = new Set();
    context.on("request", (request) => hosts.add(new URL(request.url()).host));
    tabs.set(tab, { browser, context, page, hosts });
    await page.goto(`${origin}/console`);
    await page.getByLabel("Token").fill(token);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.waitForURL("**/console/sessions");
    await page.waitForLoadState("load");
    // The event stream is open, and so the worker is loaded.
    await page.waitForTimeout(1_000);
    return { hosts: [...hosts] };
  },

  // Loads a page; the time from the navigation to the end of the load event, and what it shows.
  async load({ tab, address, rows }) {
    const { page } = tabs.get(tab);
    await page.goto(address, { waitUntil: "load" });
    const time = await page.evaluate(async () => {
      const [navigation] = performance.getEntriesByType("navigation");
      while (navigation.loadEventEnd === 0) await new Promise((done) => setTimeout(done));
      return navigation.loadEventEnd;
    });
    return { time, rows: await page.locator(rows).count() };
  },

  // Processes of the tab after a collection of garbage, its heap and its nodes.
  async memory({ tab }) {
    const { browser, context, page } = tabs.get(tab);
    const session = await context.newCDPSession(page);
    await session.send("Performance.enable");
    for (let round = 0; round < 3; round += 1) {
      await session.send("HeapProfiler.collectGarbage");
      await page.waitForTimeout(500);
    }
    const { metrics } = await session.send("Performance.getMetrics");
    const metric = (name) => metrics.find((known) => known.name === name).value;
    const { processInfo } = await (await browser.newBrowserCDPSession()).send("SystemInfo.getProcessInfo");
    const renderers = processInfo.filter(({ type }) => type === "renderer").map(({ id }) => id);
    return { renderers, heap: metric("JSHeapUsedSize"), nodes: metric("Nodes") };
  },

  // Opens a session and notes from now on when its updates are on the screen.
  async watch({ tab, address }) {
    const { page } = tabs.get(tab);
    await page.goto(address, { waitUntil: "load" });
    await page.waitForFunction(() => document.querySelector("#link-state").textContent === "");
    await page.waitForTimeout(1_000);
    await page.evaluate(stampUpdates);
    return {};
  },

  async stamps({ tab }) {
    await tabs.get(tab).page.waitForTimeout(500);
    return tabs.get(tab).page.evaluate(() => window.stamps);
  },

  async close({ tab }) {
    const { browser, hosts } = tabs.get(tab);
    tabs.delete(tab);
    await browser.close();
    return { hosts: [...hosts] };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { what, ...rest } = JSON.parse(line);
  const answer = await requests[what](rest).catch((error) => ({ error: String(error) }));
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
for (const { browser } of tabs.values()) await browser.close();
