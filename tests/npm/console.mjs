// The console in Chromium: `node console.mjs CHROMIUM STORY ARGUMENTS…`. It judges nothing and prints what was seen as JSON.
import { readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const [program, story, ...rest] = process.argv.slice(2);
const args = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-component-update", "--disable-sync",
  "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"];
// Long, because the first route trains the router, which takes a build without optimisation many seconds.
const WAIT = { timeout: 90_000 };

const browser = await chromium.launch({ executablePath: program, headless: true, args });
const problems = [];
const requests = [];

// A new browser with its own cookies.
async function visit(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: "light", ...options });
  context.setDefaultTimeout(WAIT.timeout);
  const page = await context.newPage();
  watch(page);
  return { context, page };
}

function watch(page) {
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("dialog", (dialog) => { problems.push(`dialog ${dialog.message()}`); dialog.dismiss(); });
  page.on("request", (request) => requests.push(new URL(request.url()).host));
}

const main = (page) => page.locator("main");
const problem = (page) => page.locator(".problem:not([hidden])").first().textContent(WAIT);

// Presses the key until it answers the request: it counts once the row was visible for half a second.
async function answerByKey(page, key) {
  while (await page.locator("li[data-state=open]").count()) {
    await page.keyboard.press(key);
    await page.waitForTimeout(100);
  }
  await page.locator("li[data-state=closed]").waitFor(WAIT);
}

async function logIn(page, origin, token) {
  await page.goto(`${origin}/console`);
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.waitForURL("**/console/sessions");
}

async function openSession(page, origin, prompt) {
  await page.goto(`${origin}/console/sessions`);
  await page.getByText("New session", { exact: true }).click();
  await page.getByLabel("Prompt", { exact: true }).fill(prompt);
  await page.getByRole("button", { name: "Open session" }).click();
  await page.waitForURL(/console\/sessions\/\w+$/);
}

const idle = (page) => page.locator("#session-state", { hasText: "idle" }).waitFor(WAIT);

const stories = {
  // The code of `skein console`: it works once, and the address forgets it.
  async code([url]) {
    const { context, page } = await visit();
    await page.goto(url);
    await page.waitForURL("**/console/sessions");
    const seen = { title: await page.title(), heading: await page.locator("h1").textContent() };
    const [cookie] = await context.cookies();
    seen.cookie = { httpOnly: cookie.httpOnly, sameSite: cookie.sameSite, path: cookie.path, secure: cookie.secure };
    const again = await visit();
    await again.page.goto(url);
    seen.again = await problem(again.page);
    seen.address = new URL(again.page.url()).hash;
    await page.getByRole("button", { name: "Log out" }).click();
    await page.waitForURL("**/console/login");
    seen.left = (await context.cookies()).length;
    await page.goto(`${new URL(url).origin}/console/graph`);
    seen.after = new URL(page.url()).pathname + new URL(page.url()).search;
    return seen;
  },

  async token([origin, token]) {
    const { page } = await visit();
    await page.goto(`${origin}/console/graph`);
    await page.getByLabel("Token").fill("skein_wrong");
    await page.keyboard.press("Enter");
    const seen = { wrong: await problem(page) };
    await page.getByLabel("Token").fill(token);
    await page.keyboard.press("Enter");
    await page.waitForURL("**/console/graph");
    seen.who = (await page.locator(".who").textContent()).includes("ana");
    return seen;
  },

  // Opens, prompts, searches and exports, with the keyboard alone where a person types.
  async session([origin, token]) {
    const { page } = await visit();
    await logIn(page, origin, token);
    await openSession(page, origin, "good morning");
    await idle(page);
    const seen = { first: await page.locator("#transcript .answer .said").allTextContents() };
    const dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    await page.getByLabel("Pictures").setInputFiles({ name: "dot.png", mimeType: "image/png", buffer: Buffer.from(dot, "base64") });
    await page.getByLabel("Your prompt").fill("second prompt");
    await page.keyboard.press("Control+Enter");
    await page.locator("#transcript .answer .said", { hasText: "second prompt" }).waitFor(WAIT);
    await idle(page);
    seen.picture = await page.locator("#transcript .prompt img").evaluateAll((images) => images.map(({ naturalWidth }) => naturalWidth));
    seen.files = await page.getByLabel("Pictures").evaluate(({ files }) => files.length);
    seen.prompts = await page.locator("#transcript .prompt .said").allTextContents();
    seen.answers = await page.locator("#transcript .answer .said").allTextContents();
    seen.empty = await page.getByLabel("Your prompt").inputValue();
    await page.getByLabel("Approval").selectOption("deny");
    await page.getByRole("button", { name: "Switch" }).click();
    await page.waitForLoadState();
    await page.waitForFunction(() => document.querySelector("select[name=approval]")?.value === "deny");
    seen.approval = await page.getByLabel("Approval").inputValue();
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "Markdown" }).click()]);
    seen.export = await readFile(await download.path(), "utf8");
    await page.getByRole("link", { name: "Sessions" }).click();
    await page.getByLabel("Search all messages").fill("second");
    await page.keyboard.press("Enter");
    await page.waitForURL(/q=second/);
    seen.hits = await page.locator("ul.rows > li").count();
    await page.locator("ul.rows > li > a").first().click();
    seen.found = await page.locator(".entry .said", { hasText: "second prompt" }).count() > 0;
    return seen;
  },

  // A turn that hangs until a person cancels it.
  async cancel([origin, token]) {
    const { page } = await visit();
    await logIn(page, origin, token);
    await openSession(page, origin, "hang");
    await page.locator("#live .said", { hasText: "I think" }).waitFor(WAIT);
    const seen = { state: await page.locator("#session-state").textContent() };
    await page.getByLabel("Your prompt").fill("too early");
    await page.getByRole("button", { name: "Send" }).click();
    seen.busy = await problem(page);
    await page.getByRole("button", { name: "Cancel the turn" }).click();
    await page.locator(".entry.remark", { hasText: "Turn cancelled" }).waitFor(WAIT);
    await idle(page);
    seen.kept = await page.getByLabel("Your prompt").inputValue();
    return seen;
  },

  // Two browsers see one request; the first answer counts.
  async approvals([origin, token, key]) {
    const one = (await visit()).page;
    const other = (await visit()).page;
    await logIn(one, origin, token);
    await logIn(other, origin, token);
    await openSession(one, origin, "write it");
    const session = one.url();
    for (const page of [one, other]) {
      await page.goto(`${origin}/console/approvals`);
      await page.locator("li[data-state=open]").waitFor(WAIT);
    }
    await other.locator("#approval-count:not([hidden])").waitFor(WAIT);
    const seen = { title: await one.locator("li[data-request] strong").textContent(), badge: await other.locator("#approval-count").textContent() };
    seen.diff = await one.locator("li[data-request] .diff .add").first().textContent();
    const number = await one.locator("li[data-request]").getAttribute("data-request");
    // A key elsewhere, or on a row that was not visible long enough, answers nothing.
    await one.locator("h1").click();
    await one.keyboard.press(key);
    seen.elsewhere = await one.locator("li[data-state=open]").count();
    // The page measures how long a row is visible. Its clock stands still, so that the key is early on a busy machine too.
    await one.addInitScript(() => {
      const start = performance.now();
      performance.now = () => start + (window.later ? 10_000 : 0);
    });
    await one.reload();
    await one.locator("li[data-state=open]").focus();
    await one.keyboard.press(key);
    seen.early = await one.locator("li[data-state=open]").count();
    await one.evaluate(() => { window.later = true; });
    await answerByKey(one, key);
    await other.locator("li[data-state=closed]").waitFor(WAIT);
    seen.closed = await other.locator("li[data-state=closed]").textContent();
    seen.second = await other.evaluate(async (number) => {
      const csrf = document.querySelector("meta[name=csrf-token]").content;
      const answer = await fetch(`/console/approvals/${number}`, { method: "POST", body: new URLSearchParams({ csrf, answer: "allow" }), headers: { "x-console-script": "1" } });
      return [answer.status, await answer.text()];
    }, number);
    await one.goto(session);
    await idle(one);
    seen.results = await one.locator("#transcript .result .by").allTextContents();
    seen.results = seen.results.map((text) => text.trim().split(" ")[0]);
    return seen;
  },

  // Every text of the corpus as prompt, answer, title, argument, query, app and manifest.
  async injections([url, file, hostile]) {
    const corpus = JSON.parse(await readFile(file, "utf8"));
    const { page } = await visit();
    const origin = new URL(url).origin;
    await page.goto(url);
    await page.waitForURL("**/console/sessions");
    const seen = { hits: [], shown: 0, count: corpus.length };
    const violations = [];
    page.on("console", (message) => { if (message.type() === "error" && message.text().includes("Content Security Policy")) violations.push(message.text()); });
    const look = async (what) => { if (await page.evaluate(() => window.hit)) seen.hits.push(what); };
    await openSession(page, origin, corpus[0]);
    const address = page.url();
    for (const text of corpus.slice(1)) {
      await idle(page);
      const before = await page.locator("#transcript .prompt").count();
      await page.getByLabel("Your prompt").fill(text);
      await page.keyboard.press("Control+Enter");
      await page.locator("#transcript .prompt").nth(before).waitFor(WAIT);
      await look(text);
    }
    await idle(page);
    seen.shown = await page.locator("#transcript .prompt").count();
    // A permission request with the corpus as path and content.
    await openSession(page, origin, "write the corpus");
    await page.goto(`${origin}/console/approvals`);
    await page.locator("li[data-state=open]").waitFor(WAIT);
    seen.diff = (await page.locator("li[data-request] .diff").first().textContent()).includes(corpus[0]);
    await look("approvals");
    // The result of a call, in the transcript while it runs and afterwards.
    await openSession(page, origin, "read the corpus");
    await idle(page);
    seen.result = (await page.locator("#transcript .result").first().textContent()).includes(corpus[0]);
    await look("result");
    await page.reload();
    await look("result, again");
    // A prompt to route, a call to test and cases to evaluate.
    const all = corpus.join(" ");
    await page.goto(`${origin}/console/routing?${new URLSearchParams({ prompt: all })}`);
    await look("routing");
    for (const [mode, tool, given] of [[hostile, all, "{}"], [all, "developer__shell", "{}"], [hostile, "developer__shell", JSON.stringify({ command: all })], [hostile, "developer__shell", all]]) {
      await page.goto(`${origin}/console/rules?${new URLSearchParams({ mode, tool, arguments: given })}`);
      await look("rules");
    }
    const line = all.replace(/\s/g, " ");
    for (const text of [`${hostile}\t${line}`, `${line}\tx`]) {
      await page.goto(`${origin}/console/routing/evaluation`);
      await page.getByLabel("Cases").fill(text);
      await Promise.all([page.waitForEvent("load"), page.getByRole("button", { name: "Evaluate" }).click()]);
      await look("evaluation");
    }
    const paths = [address, "/console/sessions", "/console/sessions?q=window.hit", "/console/graph", "/console/services/hostile",
      `/console/modes/${hostile}`, "/console/approvals", "/console/apps", "/console/manifests", "/console/rules",
      "/console/manifests/edit?file=services%2Fhostile.yaml", "/console/health"];
    for (const path of paths) {
      await page.goto(new URL(path, origin).href);
      await page.waitForTimeout(100);
      await look(path);
      seen.scripts = await page.evaluate(() => [...document.scripts].map((script) => new URL(script.src).pathname));
      if (path === "/console/apps") seen.apps = await page.locator("ul.rows > li").count();
    }
    for (const index of [0, 1, 2]) {
      await page.goto(`${origin}/console/apps/app-${index}`);
      await page.waitForTimeout(100);
      await look(`app ${index}`);
    }
    // A manifest whose fields and values are the corpus: findings, diff, editor and form.
    await page.goto(`${origin}/console/manifests/edit?file=services%2Fhostile.yaml`);
    const lines = [...new Set(corpus)].map((text) => `${JSON.stringify(text)}: ${JSON.stringify(text)}`);
    await page.getByLabel("Content of the file").fill(`version: 1\nkind: service\nname: ${JSON.stringify(corpus[0])}\n${lines.join("\n")}\n`);
    await page.getByRole("button", { name: "Check and compare" }).click();
    await page.locator("#findings .finding").first().waitFor(WAIT);
    seen.findings = await page.locator("#findings .finding").count();
    await look("findings");
    // Items with names, in the form. Names with line breaks stay text.
    const plain = [...new Set(corpus)].filter((text) => !/[\r\n]/.test(text));
    const named = plain.map((text) => `  ${JSON.stringify(text)}: [${JSON.stringify(text)}]`);
    await page.getByLabel("Content of the file").fill(`version: 1\nkind: service\nname: hostile\ngroups:\n${named.join("\n")}\n`);
    await Promise.all([page.waitForEvent("load"), page.getByRole("button", { name: "Check and compare" }).click()]);
    seen.items = await page.locator("input[name^='key.groups.']").count();
    await look("form");
    await page.getByText("Fields of the schema").click();
    await page.getByRole("button", { name: "Add to groups" }).click();
    await look("new item");
    for (const text of corpus) {
      await page.goto(`${origin}/console/sessions?${new URLSearchParams({ q: text, mode: text, state: text, after: text })}`);
      await look(`query ${text}`);
    }
    for (const text of corpus.slice(0, 8)) {
      await page.goto(`${origin}/console/manifests/edit?${new URLSearchParams({ file: `services/${text}.yaml` })}`);
      await look(`file ${text}`);
    }
    return { ...seen, violations };
  },

  // A person saves a manifest with a mistake, and then without.
  async manifest([url, file]) {
    const { context, page } = await visit();
    const origin = new URL(url).origin;
    await page.goto(url);
    await page.waitForURL("**/console/sessions");
    await page.getByRole("link", { name: "Manifests" }).click();
    await page.getByLabel("New file").fill("services/web.yaml");
    await page.keyboard.press("Enter");
    await page.getByText("This file does not exist yet.").waitFor(WAIT);
    const text = "version: 1\nkind: service\nname: web\ndescription: Reads pages.\ntransport:\n  http:\n    url: http://127.0.0.1:9/\n";
    const area = page.getByLabel("Content of the file");
    const press = (name) => Promise.all([page.waitForEvent("load"), page.getByRole("button", { name, exact: true }).click()]);
    const check = async (content) => {
      await area.fill(content);
      await press("Check and compare");
    };
    await check(text.replace("transport", "transprt"));
    const seen = { refused: await problem(page), finding: await page.locator("ol.source .finding", { hasText: "unknown field" }).first().textContent() };
    seen.line = await page.locator("ol.source li", { has: page.locator(".finding", { hasText: "unknown field" }) }).first().getAttribute("value");
    seen.saveable = await page.getByRole("button", { name: "Save", exact: true }).count();
    seen.written = await readFile(file, "utf8").then(() => true, () => false);
    seen.kept = await area.inputValue();
    await check(text);
    seen.added = (await page.locator(".diff .add").allTextContents()).join("\n");
    // Another tab shows the graph meanwhile.
    const graph = await context.newPage();
    watch(graph);
    await graph.goto(`${origin}/console/graph`);
    seen.unknown = await graph.locator("tr[data-service=web]").count();
    await press("Save");
    seen.saved = (await readFile(file, "utf8")) === text;
    await graph.locator("tr[data-service=web]").waitFor(WAIT);
    seen.live = await graph.locator("tr[data-service=web]").count();
    await graph.close();
    // The form of the schema, and a file that another program changes meanwhile.
    await page.getByText("Fields of the schema").click();
    await page.locator("[name='field.description']").fill("From the form.");
    await press("Fill in and compare");
    seen.form = (await page.locator(".diff .add").allTextContents()).join("\n");
    // After a login, the browser asks for the page again.
    await page.goto(page.url());
    seen.draft = await area.inputValue();
    await press("Check and compare");
    await writeFile(file, text.replace("Reads pages.", "Theirs."));
    await press("Save");
    seen.changed = await problem(page);
    await page.goto(`${origin}/console/manifests`);
    seen.listed = await page.getByRole("link", { name: "services/web.yaml" }).count();
    await page.goto(`${origin}/console/graph`);
    seen.graph = await page.locator("tr[data-service=web]").count();
    return seen;
  },

  // Items of a list in the form: a person adds one, moves it up and removes another with the keyboard alone.
  async items([url]) {
    const { page } = await visit();
    const origin = new URL(url).origin;
    await page.goto(url);
    await page.waitForURL("**/console/sessions");
    await page.goto(`${origin}/console/manifests/edit?file=config.yaml`);
    const press = async (target) => { await target.focus(); await page.keyboard.press("Enter"); };
    const said = () => page.locator("#items-state").textContent();
    await press(page.getByText("Fields of the schema"));
    const seen = { states: [] };
    await press(page.getByRole("button", { name: "Add to delegates" }));
    // The first field of the new item has the focus.
    await page.keyboard.type("coding/pm");
    seen.states.push(await said());
    await press(page.getByRole("button", { name: "Move up: new item" }));
    seen.states.push(await said());
    seen.focus = await page.evaluate(() => document.activeElement.getAttribute("aria-label"));
    await press(page.getByRole("button", { name: "Remove: coding/*" }));
    seen.states.push(await said());
    seen.next = await page.evaluate(() => document.activeElement.getAttribute("aria-label"));
    // A list in an item of another one.
    await press(page.getByRole("button", { name: "Add to hooks.Stop" }));
    const group = page.locator("fieldset:has(> input[name='list.hooks.Stop'])");
    await press(group.getByRole("button", { name: "Add to hooks", exact: true }));
    await page.locator("[name^='field.hooks.Stop.'][name$='.command']").fill("true");
    await Promise.all([page.waitForEvent("load"), press(page.getByRole("button", { name: "Fill in and compare" }))]);
    seen.text = await page.getByLabel("Content of the file").inputValue();
    return seen;
  },

  // The login ends while a person fills in forms. Then the file changes, another person logs in, and that one logs out.
  async fields([origin, token, other, file]) {
    const { context, page } = await visit();
    await logIn(page, origin, token);
    const target = (name) => page.locator(`[data-fill] [name='field.delegates.${name}.to']`);
    const button = (name) => page.getByRole("button", { name, exact: true });
    const press = (name) => Promise.all([page.waitForEvent("load"), button(name).click()]);
    const drafts = (tab) => tab.evaluate(() => Object.keys(sessionStorage).filter((name) => name.startsWith("draft ")));
    // The server ends the login, and the browser has its cookie still.
    const end = async () => {
      const cookies = await context.cookies();
      const csrf = await page.locator("meta[name=csrf-token]").getAttribute("content");
      await context.request.post(`${origin}/console/logout`, { form: { csrf }, headers: { "sec-fetch-site": "same-origin" } });
      await context.addCookies(cookies);
    };
    const enter = async (secret) => {
      await page.waitForURL("**/console/login?**");
      await page.getByLabel("Token").fill(secret);
      await press("Log in");
    };
    const logInAgain = async (secret) => {
      await page.locator("#link-state a").click();
      await enter(secret);
    };
    const seen = {};
    await page.goto(`${origin}/console/manifests/edit?file=config.yaml`);
    await page.getByText("Fields of the schema").click();
    await target("0").fill("coding/qa");
    await button("Add to delegates").click();
    await target("n1").fill("coding/pm");
    await button("Remove: goose/assistant").click();
    await button("Move up: new item").click();
    await end();
    await button("Fill in and compare").click();
    await page.locator("#items-state", { hasText: "no longer logged in" }).waitFor(WAIT);
    await logInAgain(token);
    seen.items = await page.locator("[data-fill] [name='item.delegates']").evaluateAll((items) => items.map(({ value }) => value));
    seen.values = [await target("n1").inputValue(), await target("0").inputValue()];
    await button("Add to delegates").click();
    await target("n2").fill("coding/sre");
    await press("Fill in and compare");
    await press("Save");
    seen.saved = await readFile(file, "utf8");
    seen.sent = (await drafts(page)).includes("draft fields config.yaml");
    // Another program changes the file before the login.
    await page.getByText("Fields of the schema").click();
    await target("1").fill("coding/backend");
    await end();
    await writeFile(file, "version: 1\nrecall: false\n");
    await logInAgain(token);
    seen.fresh = await target("1").count();
    await press("Compare it with the file");
    seen.changed = await problem(page);
    seen.text = await page.getByLabel("Content of the file").inputValue();
    // Another person logs in at this browser.
    await page.goto(`${origin}/console/rules`);
    await page.getByLabel("Tool", { exact: true }).fill("developer__shell");
    await end();
    await logInAgain(token);
    seen.rules = await page.getByLabel("Tool", { exact: true }).inputValue();
    await end();
    await logInAgain(other);
    seen.other = [await page.getByLabel("Tool", { exact: true }).inputValue(), await drafts(page)];
    // The browser itself sends this form.
    await page.goto(`${origin}/console/routing/evaluation`);
    await page.getByLabel("Cases").fill("coding/qa\tTest it.");
    await page.getByLabel("Include the modes of all agents").check();
    await end();
    await press("Evaluate");
    await enter(other);
    seen.cases = [await page.getByLabel("Cases").inputValue(), await page.getByLabel("Include the modes of all agents").isChecked()];
    // A log-out counts for all tabs.
    const tab = await context.newPage();
    watch(tab);
    await tab.goto(`${origin}/console/rules`);
    await tab.getByLabel("Tool", { exact: true }).fill("developer__shell");
    seen.before = (await drafts(tab)).length;
    await press("Log out");
    await tab.waitForFunction(() => !Object.keys(sessionStorage).some((name) => name.startsWith("draft ")));
    seen.left = await drafts(page);
    return seen;
  },

  // A person corrects a route.
  async routing([origin, token]) {
    const { page } = await visit();
    await logIn(page, origin, token);
    await page.getByRole("link", { name: "Routing" }).click();
    await page.getByLabel("Prompt").fill("zzz make the frobnicator blue");
    await page.getByRole("button", { name: "Show the route" }).click();
    const first = () => page.locator("#routes strong").first().textContent();
    const seen = { before: await first() };
    await page.getByLabel("This prompt belongs to").selectOption("coding/frontend");
    await page.getByRole("button", { name: "Remember" }).click();
    await page.waitForLoadState();
    seen.after = await first();
    return seen;
  },

  // An app that tries to leave its frame.
  async apps([url, name]) {
    const { page } = await visit();
    await page.goto(url);
    await page.waitForURL("**/console/sessions");
    await page.getByRole("link", { name: "Apps" }).click();
    await page.locator("ul.rows > li > a").first().click();
    await page.waitForURL(`**/console/apps/${name}`);
    const app = page.frameLocator("iframe.app").frameLocator("iframe");
    await app.locator("#said[data-done]").waitFor(WAIT);
    const seen = { said: JSON.parse(await app.locator("#said").textContent()) };
    seen.stays = new URL(page.url()).pathname;
    seen.cookies = (await page.context().cookies()).length;
    return seen;
  },

  // Ten tabs on one connection pool: all stay live, with one event stream, or with a WebSocket each.
  async tabs([origin, token, alone]) {
    const { context, page } = await visit();
    if (alone) await context.addInitScript(() => { delete window.SharedWorker; });
    await logIn(page, origin, token);
    await openSession(page, origin, "good morning");
    await idle(page);
    const pages = [page];
    while (pages.length < 10) {
      const tab = await context.newPage();
      watch(tab);
      await tab.goto(page.url());
      pages.push(tab);
    }
    await page.getByLabel("Your prompt").fill("to all tabs");
    await page.keyboard.press("Control+Enter");
    const shown = pages.map((tab) => tab.locator("#transcript .answer .said", { hasText: "to all tabs" }).waitFor(WAIT));
    await Promise.all(shown);
    return { tabs: pages.length, workers: await page.evaluate(() => (typeof SharedWorker === "undefined" ? 0 : 1)) };
  },

  // A person without a mouse.
  async keyboard([origin, token]) {
    const { page } = await visit();
    const tabTo = async (target) => {
      await target.waitFor(WAIT);
      for (let step = 0; step < 400; step += 1) {
        if (await target.evaluate((element) => element === document.activeElement)) return;
        await page.keyboard.press("Tab");
      }
      throw new Error(`Tab does not reach ${target}`);
    };
    const type = async (label, text) => { await tabTo(page.getByLabel(label, { exact: true })); await page.keyboard.insertText(text); };
    const press = async (target) => { await tabTo(target); await page.keyboard.press("Enter"); };
    const button = (name) => page.getByRole("button", { name, exact: true });
    const follow = (name) => press(page.getByRole("navigation").getByRole("link", { name }));
    const seen = {};
    await page.goto(`${origin}/console`);
    await type("Token", token);
    await page.keyboard.press("Enter");
    await page.waitForURL("**/console/sessions");
    await press(page.getByText("New session", { exact: true }));
    await type("Prompt", "write it");
    await press(button("Open session"));
    await page.waitForURL(/console\/sessions\/\w+$/);
    const session = page.url();
    await page.locator("#session-state", { hasText: "waiting" }).waitFor(WAIT);
    await follow("Approvals");
    await tabTo(page.locator("li[data-state=open]"));
    await answerByKey(page, "a");
    await press(page.locator("li[data-request] .meta a"));
    await page.waitForURL(session);
    await idle(page);
    seen.result = (await page.locator("#transcript .result .by").allTextContents()).map((text) => text.trim().split(" ")[0]);
    await follow("Sessions");
    await type("Search all messages", "write");
    await tabTo(page.getByLabel("Agent or mode"));
    await page.keyboard.type("goose");
    seen.filter = await page.getByLabel("Agent or mode").inputValue();
    await press(button("Show"));
    await page.waitForURL(/q=write/);
    seen.hits = await page.locator("ul.rows > li").count() > 0;
    await follow("Manifests");
    await type("New file", "services/web.yaml");
    await page.keyboard.press("Enter");
    await page.waitForURL(/manifests\/edit/);
    await tabTo(page.getByLabel("Content of the file"));
    await page.keyboard.press("Control+End");
    await page.keyboard.insertText("odd: 1\n");
    await press(button("Check and compare"));
    seen.finding = await page.locator("#findings .finding", { hasText: "unknown field" }).first().textContent(WAIT);
    await follow("Routing");
    await type("Prompt", "zzz make the frobnicator blue");
    await press(button("Show the route"));
    await page.waitForURL(/prompt=/);
    await tabTo(page.getByLabel("This prompt belongs to"));
    await page.keyboard.type("coding/frontend");
    await press(button("Remember"));
    await page.locator("#routes strong", { hasText: "coding/frontend" }).waitFor(WAIT);
    seen.route = await page.locator("#routes strong").first().textContent();
    await press(button("Log out"));
    await page.waitForURL("**/console/login");
    seen.end = new URL(page.url()).pathname;
    return seen;
  },

  // The server restarts while a person types.
  async restart([url]) {
    const { page } = await visit();
    const origin = new URL(url).origin;
    await page.goto(url);
    await page.waitForURL("**/console/sessions");
    await openSession(page, origin, "good morning");
    await idle(page);
    await page.getByLabel("Your prompt").fill("half a sent");
    process.stdout.write(`${JSON.stringify({ ready: true })}\n`);
    const next = await new Promise((done) => process.stdin.once("data", (data) => done(String(data).trim())));
    await page.locator("#link-state", { hasText: "Log in again" }).waitFor(WAIT);
    const seen = { kept: await page.getByLabel("Your prompt").inputValue() };
    const address = new URL(page.url()).pathname;
    await page.locator("#link-state a").click();
    await page.waitForURL("**/console/login?**");
    await page.evaluate((code) => { location.hash = code; }, new URL(next).hash.slice(1));
    await page.reload();
    await page.waitForURL(`**${address}`);
    seen.back = await page.getByLabel("Your prompt").inputValue();
    await page.keyboard.press("Tab");
    await page.getByLabel("Your prompt").fill("half a sentence");
    await page.getByRole("button", { name: "Send" }).click();
    await page.locator("#transcript .answer .said", { hasText: "half a sentence" }).waitFor(WAIT);
    seen.prompts = await page.locator("#transcript .prompt .said").allTextContents();
    return seen;
  },

  // The server is away for a while, and a session goes on before the tab is connected again.
  async reconnect([origin, token]) {
    const { context, page } = await visit();
    const heard = async () => String(await new Promise((done) => process.stdin.once("data", done))).trim();
    await logIn(page, origin, token);
    await openSession(page, origin, "good morning");
    await idle(page);
    await page.getByLabel("Your prompt").fill("half a sent");
    process.stdout.write(`${JSON.stringify({ ready: true })}\n`);
    await heard();
    await page.locator("#link-state", { hasText: "Reconnecting" }).waitFor(WAIT);
    process.stdout.write(`${JSON.stringify({ offline: true })}\n`);
    await heard();
    // Another program of the same person, with the same cookie.
    const csrf = await page.locator("meta[name=csrf-token]").getAttribute("content");
    const headers = { "sec-fetch-site": "same-origin", "x-console-script": "1" };
    const sent = await context.request.post(`${page.url()}/prompt`, { form: { csrf, prompt: "while it was away" }, headers });
    const seen = { sent: sent.status() };
    await page.locator("#transcript .answer .said", { hasText: "while it was away" }).waitFor(WAIT);
    await idle(page);
    seen.prompts = await page.locator("#transcript .prompt .said").allTextContents();
    seen.draft = await page.getByLabel("Your prompt").inputValue();
    seen.state = await page.locator("#link-state").textContent();
    return seen;
  },

  // Each page at two widths in both schemes, with axe-core and a picture.
  async looks([origin, token, folder, modePath]) {
    const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
    const first = (await visit()).page;
    await logIn(first, origin, token);
    await openSession(first, origin, "write it");
    await first.goto(`${origin}/console/approvals`);
    await first.locator("li[data-state=open]").waitFor(WAIT);
    const session = await first.locator("li[data-request] .meta a").getAttribute("href");
    const paths = { login: "/console/login", sessions: "/console/sessions", session, approvals: "/console/approvals", graph: "/console/graph", mode: `/console/modes/${modePath}`, service: "/console/services/developer", routing: "/console/routing?prompt=fix+the+login", evaluation: "/console/routing/evaluation", apps: "/console/apps", manifests: "/console/manifests", manifest: "/console/manifests/edit?file=services%2Fweb.yaml", rules: "/console/rules", health: "/console/health" };
    const findings = [];
    const wide = [];
    let views = 0;
    for (const colorScheme of ["light", "dark"]) {
      for (const width of [360, 1440]) {
        const { page } = await visit({ colorScheme, viewport: { width, height: 900 } });
        await logIn(page, origin, token);
        for (const [name, path] of Object.entries(paths)) {
          await page.goto(origin + path);
          await page.waitForTimeout(150);
          await page.evaluate(() => { for (const details of document.querySelectorAll("details")) details.open = true; });
          await page.evaluate(axe);
          const result = await page.evaluate(() => window.axe.run(document));
          for (const { id, impact, nodes } of result.violations) {
            if (["serious", "critical"].includes(impact)) findings.push(`${name} ${width} ${colorScheme}: ${id}: ${nodes[0].html}`);
          }
          const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          if (overflow > 0) wide.push(`${name} ${width}: ${overflow}`);
          await page.screenshot({ path: `${folder}/console-${name}-${width}-${colorScheme}.png`, fullPage: false });
          views += 1;
        }
      }
    }
    return { findings, wide, views };
  },

  // What the first view transfers.
  async first([url]) {
    const { page } = await visit();
    let bytes = 0;
    const paths = [];
    page.on("response", async (response) => {
      if (response.request().resourceType() === "eventsource") return;
      paths.push(new URL(response.url()).pathname);
      bytes += (await response.body().catch(() => Buffer.alloc(0))).length;
    });
    await page.goto(url);
    await page.waitForURL("**/console/sessions");
    await page.waitForTimeout(500);
    const isAsset = (path) => path.startsWith("/console/assets/");
    // What the second page takes from the cache transfers nothing.
    const sizes = await page.evaluate(() => performance.getEntriesByType("resource").map(({ name, transferSize }) => [new URL(name).pathname, transferSize]));
    const fetched = sizes.filter(([path, size]) => isAsset(path) && size > 0).map(([path]) => path);
    return { bytes, assets: [...new Set(paths.filter(isAsset))].sort(), fetched };
  },
};

try {
  const seen = await stories[story](rest);
  process.stdout.write(JSON.stringify({ ...seen, problems, hosts: [...new Set(requests)].length }));
} finally {
  await browser.close();
}
process.exit(0);
