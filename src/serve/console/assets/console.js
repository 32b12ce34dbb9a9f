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

async function get(url) {
  const answer = await fetch(url, { headers: PASSIVE });
  if (answer.status === 401) showState("Log in again", toLogin());
  return answer;
}

function parse(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

// ---- One event stream for all tabs

const page = $("#transcript");
const watch = page?.dataset.session ?? null;

function hear(message) {
  if (message.kind === "online") showState("");
  if (message.kind === "offline") showState("Reconnecting…");
  if (message.kind === "login") showState("Log in again", toLogin());
  if (message.kind === "approvals") showCount(message.count);
  for (const listener of listeners) listener(message);
}

function connect() {
  if (typeof SharedWorker === "undefined") { connectAlone(250); return; }
  const worker = new SharedWorker("/console/assets/events-worker.js", { name: "skein-events" });
  worker.port.onmessage = ({ data }) => hear(data);
  worker.port.postMessage({ kind: "join", watch });
  setInterval(() => worker.port.postMessage({ kind: "here", watch }), 20_000);
  addEventListener("pagehide", () => worker.port.postMessage({ kind: "leave" }));
  addEventListener("pageshow", (event) => { if (event.persisted) worker.port.postMessage({ kind: "join", watch }); });
}

// One WebSocket per tab, for browsers without shared workers: it is none of the few HTTP/1.1 connections per host.
function connectAlone(delay) {
  const address = new URL(`/console/socket?${new URLSearchParams(watch ? { watch } : {})}`, location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(address);
  let next = Math.min(delay * 2, 5_000);
  socket.onopen = () => { next = 250; hear({ kind: "online" }); };
  socket.onmessage = ({ data }) => hear(JSON.parse(data));
  socket.onclose = () => {
    hear({ kind: "offline" });
    // The socket does not say why it closed: a login that is over, or a server that restarts.
    get("/console/alive").catch(() => {});
    setTimeout(() => connectAlone(next), delay);
  };
}

function showCount(count) {
  const badge = $("#approval-count");
  badge.hidden = count === 0;
  badge.textContent = count === 0 ? "" : String(count);
}

// ---- Typed text survives a reload, a login and a restart of the server

for (const area of document.querySelectorAll("textarea[data-draft]")) {
  const key = `draft ${area.dataset.draft}`;
  area.value = sessionStorage.getItem(key) ?? area.value;
  area.addEventListener("input", () => sessionStorage.setItem(key, area.value));
  area.form.addEventListener("sent", () => { sessionStorage.removeItem(key); area.value = ""; });
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
      problem.hidden = answer.ok;
      if (!answer.ok) problem.textContent = await answer.text();
      else {
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
  const stream = (kind, text) => {
    if (!draft || draft.dataset.kind !== kind) {
      draft = document.createElement("div");
      draft.className = kind === "thought" ? "entry live thought" : "entry live";
      draft.dataset.kind = kind;
      draft.append(Object.assign(document.createElement("p"), { className: "said" }));
      $("#live").append(draft);
    }
    draft.firstChild.append(text);
  };
  const clearLive = () => { draft = null; $("#live").replaceChildren(); };

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
            while (page.childElementCount > MAX_ENTRIES) page.firstElementChild.remove();
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
        if (message.clear) {
          draft = null;
          for (const old of $("#live").children) old.dataset.old = "1";
        }
        catchUp();
        break;
      case "text": case "thought": follow(() => stream(message.kind, message.text)); break;
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
        for (const old of $("#live").children) old.dataset.old = "1";
        draft = null;
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
      problem.hidden = sent.ok;
      if (!sent.ok) problem.textContent = await sent.text();
      // An answer that does not fit leaves the request open.
      if (!sent.ok && sent.status !== 409) for (const button of row.querySelectorAll("button")) button.disabled = false;
      await refresh();
    } catch {
      problem.textContent = "The server does not answer. The request is still open.";
      problem.hidden = false;
      for (const button of row.querySelectorAll("button")) button.disabled = false;
    }
  }

  async function refresh() {
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
      observe(row);
    }
    for (const gone of known.values()) gone.remove();
    $("#no-approvals").hidden = rows().length > 0;
  }

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
  listeners.push((message) => { if (["approvals", "online"].includes(message.kind)) refresh(); });
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

const services = $("#services[data-live]");
if (services) {
  setInterval(async () => {
    if (document.hidden) return;
    const answer = await get("/console/graph/states").catch(() => null);
    if (!answer?.ok) return;
    for (const service of await answer.json()) {
      const row = services.querySelector(`tr[data-service="${CSS.escape(service.name)}"]`);
      if (!row) continue;
      const show = (cell, text) => {
        const place = $(`[data-cell=${cell}]`, row);
        if (place.textContent !== text) place.textContent = text;
        return place;
      };
      show("state", service.state).className = `state ${service.state}`;
      show("leases", String(service.leases));
      show("restarts", String(service.restarts));
      show("problem", service.problem ? `Last error: ${service.problem}` : "");
    }
  }, 1_000);
}

connect();
