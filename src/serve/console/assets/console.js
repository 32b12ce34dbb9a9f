// The scripts of all pages. Text reaches the page as text, or as markup that the server has escaped.
const csrf = document.querySelector("meta[name=csrf-token]").content;
const $ = (selector, within = document) => within.querySelector(selector);
const listeners = [];

const SCRIPT = { "x-console-script": "1" };
const PASSIVE = { ...SCRIPT, "x-console-passive": "1" };

const toLogin = () => `/console/login?${new URLSearchParams({ next: location.pathname + location.search })}`;

function showState(text, link) {
  const state = $("#link-state");
  state.replaceChildren();
  if (!text) return;
  if (link) state.append(Object.assign(document.createElement("a"), { href: link, textContent: text }));
  else state.textContent = text;
}

// Sends a form. Returns the answer; the caller shows problems.
async function post(url, fields) {
  const body = new URLSearchParams(fields);
  body.set("csrf", csrf);
  const answer = await fetch(url, { method: "POST", body, headers: SCRIPT });
  if (answer.status === 401) showState("Log in again", toLogin());
  return answer;
}

async function ask(url) {
  const answer = await fetch(url, { headers: PASSIVE });
  if (answer.status === 401) showState("Log in again", toLogin());
  return answer;
}

// Reads news. If the token has made too many requests, waits as long as the server says, so that no news is lost.
async function get(url) {
  for (;;) {
    const answer = await ask(url);
    if (answer.status !== 429) return answer;
    await new Promise((done) => setTimeout(done, 1_000 * (Number(answer.headers.get("retry-after")) || 5)));
  }
}

// Returns a function that runs the work, and once more if it was called meanwhile, however often.
function coalesce(work) {
  let running = null;
  let again = false;
  const run = async () => {
    try { while (again) { again = false; await work(); } } finally { running = null; }
  };
  return () => { again = true; running ??= run(); return running; };
}

function parse(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

// ---- One event stream for all tabs

const page = $("#transcript");
const watch = page?.dataset.session ?? null;
// A page whose news comes over the stream: the graph, or a service.
const live = $("[data-page]");
const shown = { watch, page: live?.dataset.page ?? null };

function hear(message) {
  if (message.kind === "online") showState("");
  if (message.kind === "offline") showState("Reconnecting…");
  if (message.kind === "login") showState("Log in again", toLogin());
  if (message.kind === "approvals") showCount(message.count);
  for (const listener of listeners) listener(message);
}

function connect() {
  if (typeof SharedWorker === "undefined") { connectAlone(250); return; }
  const worker = new SharedWorker($("meta[name=events-worker]").content, { name: "skein-events" });
  worker.port.onmessage = ({ data }) => hear(data);
  worker.port.postMessage({ kind: "join", ...shown });
  setInterval(() => worker.port.postMessage({ kind: "here", ...shown }), 20_000);
  addEventListener("pagehide", () => worker.port.postMessage({ kind: "leave" }));
  addEventListener("pageshow", (event) => { if (event.persisted) worker.port.postMessage({ kind: "join", ...shown }); });
}

// One WebSocket per tab, for browsers without shared workers: it is none of the few HTTP/1.1 connections per host.
function connectAlone(delay) {
  const query = new URLSearchParams(Object.entries(shown).filter(([, name]) => name));
  const address = new URL(`/console/socket?${query}`, location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(address);
  let next = Math.min(delay * 2, 5_000);
  socket.onopen = () => { next = 250; hear({ kind: "online" }); };
  socket.onmessage = ({ data }) => hear(JSON.parse(data));
  socket.onclose = () => {
    hear({ kind: "offline" });
    // The socket does not say why it closed: a login that is over, or a server that restarts.
    ask("/console/alive").catch(() => {});
    setTimeout(() => connectAlone(next), delay);
  };
}

function showCount(count) {
  const badge = $("#approval-count");
  badge.hidden = count === 0;
  badge.textContent = count === 0 ? "" : String(count);
}

// ---- Typed text survives a reload, a login and a restart of the server, but no log-out and no other principal

const LOG_OUT = "last log-out";
// All tabs know the last log-out, but each one has drafts of its own.
const author = () => `${$("meta[name=principal]").content} ${localStorage.getItem(LOG_OUT) ?? ""}`;
const drafts = {
  find: (key) => sessionStorage.getItem(`draft ${key}`),
  // A page that is still there after the log-out keeps nothing.
  keep(key, text) {
    if (sessionStorage.getItem("author") !== author()) return;
    try { sessionStorage.setItem(`draft ${key}`, text); } catch { /* The storage is full: the text is only on the page. */ }
  },
  drop(key) { sessionStorage.removeItem(`draft ${key}`); },
  clear() {
    const names = Object.keys(sessionStorage).filter((name) => name.startsWith("draft "));
    names.forEach((name) => sessionStorage.removeItem(name));
  },
};
if (sessionStorage.getItem("author") !== author()) {
  drafts.clear();
  sessionStorage.setItem("author", author());
}
addEventListener("storage", ({ key }) => { if (key === LOG_OUT) drafts.clear(); });
$("form[action='/console/logout']").addEventListener("submit", () => {
  localStorage.setItem(LOG_OUT, String(Date.now()));
  drafts.clear();
});

for (const area of document.querySelectorAll("textarea[data-draft]")) {
  const key = area.dataset.draft;
  // The page of a file shows the changes that were checked but not saved.
  const keys = [key, ...(area.dataset.fileDraft ? [area.dataset.fileDraft] : [])];
  const keep = () => keys.forEach((name) => drafts.keep(name, area.value));
  area.value = drafts.find(key) ?? area.value;
  if (keys.length > 1) keep();
  area.addEventListener("input", keep);
  area.form.addEventListener("sent", () => { drafts.drop(key); area.value = ""; });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); area.form.requestSubmit(); }
  });
}

// ---- Pictures are sent with the prompt

function read(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.replace(/^data:/, ""));
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
}

async function fieldsOf(form) {
  const fields = [];
  for (const [name, value] of new FormData(form)) {
    if (!(value instanceof File)) fields.push([name, value]);
    else if (value.size > 0) fields.push([name, await read(value)]);
  }
  return fields;
}

// A form whose page stays: it says what went wrong, and is empty once it was sent.
for (const form of document.querySelectorAll("form[data-stay]")) {
  const problem = $(".problem", form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = event.submitter ?? $("button[type=submit]", form);
    button.disabled = true;
    try {
      const answer = await post(form.action, await fieldsOf(form));
      if (!answer.ok) problem.textContent = await answer.text();
      problem.hidden = answer.ok;
      if (answer.ok) {
        form.dispatchEvent(new Event("sent"));
        for (const input of form.querySelectorAll("input[type=file]")) input.value = "";
        const next = answer.headers.get("x-console-next");
        if (next) location.assign(next);
      }
    } catch {
      problem.textContent = "The server does not answer. What you typed is still here; send it again later.";
      problem.hidden = false;
    } finally {
      button.disabled = false;
    }
  });
}

// ---- A session

if (page) {
  const session = page.dataset.session;
  const state = $("#session-state");
  const cancel = $("#cancel-form button");
  const MAX_ENTRIES = 1_000;
  let last = Number(page.dataset.last);
  let busy = false;
  let again = false;
  let draft = null;
  // Text that came since the last frame: a page draws each frame once, however many pieces there are.
  let pieces = [];
  let isWaiting = false;

  const isAtEnd = () => innerHeight + scrollY > document.documentElement.scrollHeight - 120;
  const follow = (change) => {
    const atEnd = isAtEnd();
    change();
    if (atEnd) scrollTo({ top: document.documentElement.scrollHeight });
  };
  const showWork = (word) => {
    state.textContent = word;
    state.className = `state ${word}`;
    if (cancel) cancel.disabled = word === "idle";
  };
  const draw = ({ kind, text }) => {
    if (!draft || draft.dataset.kind !== kind) {
      draft = document.createElement("div");
      draft.className = kind === "thought" ? "entry live thought" : "entry live";
      draft.dataset.kind = kind;
      draft.append(Object.assign(document.createElement("p"), { className: "said" }));
      draft.firstChild.append("");
      $("#live").append(draft);
    }
    draft.firstChild.firstChild.appendData(text);
  };
  const flush = () => {
    isWaiting = false;
    const shown = pieces;
    pieces = [];
    if (shown.length > 0) follow(() => shown.forEach(draw));
  };
  const stream = (kind, text) => {
    const last = pieces.at(-1);
    if (last?.kind === kind) last.text += text;
    else pieces.push({ kind, text });
    if (isWaiting) return;
    isWaiting = true;
    // A page that is not visible has no frames.
    if (document.hidden) setTimeout(flush);
    else requestAnimationFrame(flush);
  };
  const clearLive = () => { draft = null; pieces = []; $("#live").replaceChildren(); };
  // Live text that the store has now goes when its entries come.
  const endLive = () => {
    flush();
    draft = null;
    for (const old of $("#live").children) old.dataset.old = "1";
  };
  const trim = () => {
    if (page.childElementCount <= MAX_ENTRIES) return;
    while (page.childElementCount > MAX_ENTRIES) page.firstElementChild.remove();
    const earlier = $("#earlier");
    earlier.hidden = false;
    $("a", earlier).search = new URLSearchParams({ before: page.firstElementChild.dataset.seq });
  };

  async function catchUp() {
    again = true;
    if (busy) return;
    busy = true;
    try {
      while (again) {
        again = false;
        const answer = await get(`/console/sessions/${session}/entries?after=${last}`);
        if (!answer.ok) break;
        const news = await answer.json();
        follow(() => {
          if (news.last > last) {
            page.append(parse(news.html));
            // Text that is stored now was live before.
            for (const old of document.querySelectorAll("#live [data-old]")) old.remove();
            trim();
          }
          last = Math.max(last, news.last);
          showWork(news.state);
          $("#session-usage").textContent = news.usage;
          $("#session-tasks").replaceChildren(parse(news.tasks));
        });
        again ||= news.more;
      }
    } catch { /* The stream reconnects, and then asks again. */ } finally { busy = false; }
  }

  listeners.push((message) => {
    // A request that opens or closes may be of this session.
    if (["online", "approvals"].includes(message.kind)) { catchUp(); return; }
    if (message.session !== session) return;
    switch (message.kind) {
      case "snapshot":
        clearLive();
        if (message.thought) stream("thought", message.thought);
        if (message.text) stream("text", message.text);
        catchUp();
        break;
      case "changed":
        if (message.clear) endLive();
        catchUp();
        break;
      case "text": case "thought":
        stream(message.kind, message.text);
        break;
      case "progress": $("#session-progress").textContent = message.text; break;
      case "notice": {
        const notice = Object.assign(document.createElement("p"), { className: "meta", textContent: message.text });
        $("#live").append(notice);
        break;
      }
      case "title":
        $("h1").textContent = message.text;
        document.title = `${message.text} · Skein`;
        break;
      case "ended":
        $("#session-progress").textContent = message.problem ?? "";
        endLive();
        showWork("idle");
        catchUp();
        break;
    }
  });
}

// ---- Approvals

const approvals = $("#approvals");
if (approvals) {
  const MIN_VISIBLE = 500;
  const visibleSince = new WeakMap();
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting, intersectionRatio, intersectionRect } of entries) {
      const shown = isIntersecting && (intersectionRatio > 0.6 || intersectionRect.height > innerHeight / 2);
      if (!shown || document.hidden) visibleSince.delete(target);
      else if (!visibleSince.has(target)) visibleSince.set(target, performance.now());
    }
  }, { threshold: [0, 0.3, 0.65, 1] });
  const observe = (row) => { visibleSince.delete(row); observer.unobserve(row); observer.observe(row); };
  const rows = () => [...approvals.querySelectorAll("li[data-request]")];
  document.addEventListener("visibilitychange", () => rows().forEach(observe));

  async function answer(row, word, fields = []) {
    const problem = $(".problem", row);
    for (const button of row.querySelectorAll("button")) button.disabled = true;
    try {
      const sent = await post(`/console/approvals/${row.dataset.request}`, [...fields, ["answer", word]]);
      if (sent.ok) $("form", row)?.dispatchEvent(new Event("sent"));
      else problem.textContent = await sent.text();
      problem.hidden = sent.ok;
      // An answer that does not fit leaves the request open.
      if (!sent.ok && sent.status !== 409) for (const button of row.querySelectorAll("button")) button.disabled = false;
      await refresh();
    } catch {
      problem.textContent = "The server does not answer. The request is still open.";
      problem.hidden = false;
      for (const button of row.querySelectorAll("button")) button.disabled = false;
    }
  }

  // What was typed for a request that is gone may be personal, and nothing shows it any more.
  const dropAnswered = () => {
    const open = new Set([...approvals.querySelectorAll("form[data-draft]")].map((form) => `draft ${form.dataset.draft}`));
    const kept = Object.keys(sessionStorage).filter((name) => name.startsWith("draft request "));
    for (const name of kept) if (!open.has(name)) sessionStorage.removeItem(name);
  };

  const refresh = coalesce(async () => {
    const fetched = await get("/console/approvals/rows");
    if (!fetched.ok) return;
    const fresh = parse(await fetched.text());
    const known = new Map(rows().map((row) => [row.dataset.request, row]));
    for (const row of [...fresh.querySelectorAll("li[data-request]")]) {
      const old = known.get(row.dataset.request);
      known.delete(row.dataset.request);
      if (!old) approvals.append(row);
      else if (old.dataset.state !== row.dataset.state) {
        const focused = old.contains(document.activeElement);
        old.replaceWith(row);
        if (focused) row.focus();
      } else continue;
      row.querySelectorAll("form[data-draft]").forEach(keepFields);
      observe(row);
    }
    for (const gone of known.values()) gone.remove();
    $("#no-approvals").hidden = rows().length > 0;
    dropAnswered();
  });

  approvals.addEventListener("submit", async (event) => {
    event.preventDefault();
    const word = event.submitter.value;
    answer(event.target.closest("li"), word, await fieldsOf(event.target));
  });
  // A key counts only for the row that has the focus itself, and that a person had time to read.
  approvals.addEventListener("keydown", (event) => {
    const row = event.target;
    const word = { a: "allow", r: "reject" }[event.key];
    if (!word || event.repeat || event.ctrlKey || event.metaKey || event.altKey || !row.matches("li[data-state=open]")) return;
    // Options of external agents have no keys: only the agent knows what they mean.
    if (!$(`button[value=${word}]`, row)) return;
    const since = visibleSince.get(row);
    if (since === undefined || performance.now() - since < MIN_VISIBLE) return;
    event.preventDefault();
    answer(row, word);
  });
  rows().forEach(observe);
  dropAnswered();
  listeners.push((message) => { if (["approvals", "online"].includes(message.kind)) refresh().catch(() => {}); });
}

// ---- Lists in the form of a manifest: the form sends the items in their order on the page

let newItems = 0;
function newItem(list, id) {
  const template = $(":scope > template", list);
  return parse(template.innerHTML.replaceAll(template.dataset.place, id)).firstElementChild;
}
const listActions = {
  add(list) {
    newItems += 1;
    const item = newItem(list, `n${newItems}`);
    $(":scope > ol", list).append(item);
    $("details input:not([type=hidden]), details select, details textarea", item)?.focus();
    return "Added as";
  },
  // The other item moves, so that the button keeps the focus.
  up(list, item) { if (item.previousElementSibling) item.after(item.previousElementSibling); return "Now"; },
  down(list, item) { if (item.nextElementSibling) item.before(item.nextElementSibling); return "Now"; },
  remove(list, item) {
    const next = item.nextElementSibling ?? item.previousElementSibling;
    item.remove();
    $(next ? ":scope > .row [data-do=remove]" : ":scope > [data-do=add]", next ?? list).focus();
    return "Removed.";
  },
};
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button[data-do]");
  if (!button) return;
  const list = button.closest("[data-items]");
  const before = button.closest("[data-item]");
  const word = listActions[button.dataset.do](list, before);
  const items = [...$(":scope > ol", list).children];
  const item = button.dataset.do === "add" ? items.at(-1) : before;
  const place = items.indexOf(item) + 1;
  $("#items-state").textContent = place ? `${word} item ${place} of ${items.length}.` : `${word} ${items.length} items are left.`;
  list.dispatchEvent(new Event("input", { bubbles: true }));
});

// ---- The fields and items of a form are one draft

// Returns what was entered, without the token of the login and without files.
function contents(form) {
  const fields = new URLSearchParams([...new FormData(form)].filter(([, value]) => typeof value === "string"));
  fields.delete("csrf");
  return fields;
}

function enterItems(list, fields) {
  const name = $(":scope > input[name^='list.']", list).name.slice("list.".length);
  if (!fields.has(`list.${name}`)) return;
  const items = $(":scope > ol", list);
  const known = new Map([...items.children].map((item) => [$(":scope > input", item).value, item]));
  const ids = fields.getAll(`item.${name}`).filter((id) => known.has(id) || /^n\d{1,9}$/.test(id));
  items.replaceChildren(...ids.map((id) => known.get(id) ?? newItem(list, id)));
  for (const id of ids) if (!known.has(id)) newItems = Math.max(newItems, Number(id.slice(1)));
}

// Enters a draft. Hidden fields stay as the page came: the token of the login, and the text and version of a file.
function enter(form, fields) {
  // In the order of the page: a list comes before the lists in its items, and the collection grows with them.
  const lists = form.getElementsByClassName("items");
  for (let place = 0; place < lists.length; place += 1) enterItems(lists[place], fields);
  const values = new Map(fields);
  for (const control of form.elements) {
    const value = values.get(control.name);
    const before = control.value;
    if (control.type === "checkbox") control.checked = value !== undefined;
    if (["checkbox", "hidden"].includes(control.type) || value === undefined || value === before) continue;
    control.value = value;
    // An option that no longer exists.
    if (control.selectedIndex === -1) control.value = before;
    for (let part = control.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
  }
  const around = form.closest("details");
  if (around) around.open = true;
}

function keepFields(form) {
  const key = form.dataset.draft;
  const draft = drafts.find(key);
  const fields = new URLSearchParams(draft ?? "");
  const plain = (entries) => [...entries].map(([name, value]) => `${name}=${value.trim()}`).join("\n");
  // The items of a list are numbered, so a draft fits only the text that it was made from.
  const text = $("input[type=hidden][name=text]", form);
  // What the page shows already was sent.
  if (plain(fields) === plain(contents(form))) drafts.drop(key);
  else if (draft !== null && (!text || fields.get("text") === text.value)) enter(form, fields);
  form.addEventListener("input", () => drafts.keep(key, contents(form)));
  form.addEventListener("sent", () => drafts.drop(key));
}
// The server has applied these fields to another text. Fields for the text of this page are newer.
const applied = $("#older-fields")?.dataset.sent;
if (applied) {
  const fields = new URLSearchParams(drafts.find(applied) ?? "");
  if (fields.get("text") !== $("textarea[name=text]").defaultValue) drafts.drop(applied);
}
document.querySelectorAll("form[data-draft]").forEach(keepFields);

// Sends the form of a manifest. A problem is shown on the page with the form: another page would lose what was typed.
async function compare(form, texts, show) {
  const area = $("textarea[name=text]");
  // The form changes a text that the page has, so other changes in the editor would be lost.
  if (!texts.includes(area.value)) { show("The text has changes. Check and compare it first."); return; }
  const answer = await post(form.getAttribute("action"), new FormData(form)).catch(() => null);
  // An answer with a page has the changes, or what check says about them: the browser goes there. That page drops the draft.
  if (answer?.headers.get("content-type")?.startsWith("text/html")) { form.submit(); return; }
  show(answer ? await answer.text() : "The server does not answer. Try again.");
}

const fill = $("form[data-fill]");
fill?.addEventListener("submit", (event) => {
  event.preventDefault();
  const show = (text) => { $("#items-state").textContent = text; };
  compare(fill, [$("textarea[name=text]").defaultValue], show);
});

// Fields for a text that the file no longer has, or that was compared but not saved: the server applies them to that text.
const older = $("#older-fields");
if (older) {
  const area = $("textarea[name=text]");
  const textOf = (name) => new URLSearchParams(drafts.find(name) ?? "").get("text");
  const isOther = (name) => textOf(name) !== null && textOf(name) !== area.defaultValue;
  const key = [older.dataset.of, `${older.dataset.of} changes`].find(isOther);
  const fields = new URLSearchParams(drafts.find(key) ?? "");
  const text = fields.get("text");
  const isOlder = key !== undefined && !area.dataset.fileDraft;
  older.hidden = !isOlder;
  const input = ([name, value]) => Object.assign(document.createElement("input"), { type: "hidden", name, value });
  if (isOlder) older.append(...[...fields].map(input));
  older.addEventListener("submit", (event) => {
    event.preventDefault();
    const show = (said) => Object.assign($(".problem", older), { textContent: said, hidden: false });
    compare(older, [text, area.defaultValue], show);
  });
  $("button[type=button]", older).addEventListener("click", () => { drafts.drop(key); older.hidden = true; });
}

// ---- Filters and states of the graph

for (const input of document.querySelectorAll("input[data-filter]")) {
  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of document.querySelectorAll(input.dataset.filter)) {
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    }
  };
  input.addEventListener("input", show);
}

const graph = $("#graph");
if (graph) {
  const show = async (news) => {
    // Other agents, modes or services: the rows are read anew.
    if (news.shape !== graph.dataset.shape) {
      const query = new URLSearchParams({ known: graph.dataset.shape });
      const answer = await get(`/console/graph/states?${query}`).catch(() => null);
      if (answer?.ok) {
        const { html, shape } = await answer.json();
        if (html) graph.replaceChildren(parse(html));
        graph.dataset.shape = shape;
        for (const input of document.querySelectorAll("input[data-filter]")) input.dispatchEvent(new Event("input"));
      } else if (answer?.status !== 401) {
        // The server sends this state only once.
        setTimeout(() => { if (newest === news) follow(news); }, 5_000);
      }
    }
    for (const service of news.services) {
      const row = graph.querySelector(`tr[data-service="${CSS.escape(service.name)}"]`);
      if (!row) continue;
      const write = (cell, text) => {
        const place = $(`[data-cell=${cell}]`, row);
        if (place.textContent !== text) place.textContent = text;
        return place;
      };
      write("state", service.state).className = `state ${service.state}`;
      write("leases", String(service.leases));
      write("restarts", String(service.restarts));
      write("problem", service.problem ? `Last error: ${service.problem}` : "");
    }
  };
  // One after the other, so that rows that arrive late do not replace newer states.
  let work = Promise.resolve();
  let newest = null;
  const follow = (news) => { newest = news; work = work.then(() => show(news)).catch(() => {}); };
  listeners.push((message) => { if (message.kind === "graph") follow(message); });
}

// The status and the end of the log of a service.
listeners.push((message) => {
  if (message.kind !== "service" || `services/${message.name}` !== shown.page) return;
  for (const [id, html] of Object.entries(message.parts)) {
    const part = $(`#${id}`, live);
    const next = document.createElement("div");
    next.append(parse(html));
    if (next.innerHTML === part.innerHTML) continue;
    const hadFocus = part.contains(document.activeElement);
    part.replaceChildren(...next.childNodes);
    if (hadFocus) $("[tabindex]", part)?.focus();
  }
});

connect();
