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
  const worker = new SharedWorker($("meta[name=events-worker]").content, { name: "skein-events" });
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
  // The page of a file shows the changes that were checked but not saved.
  const keys = [key, ...(area.dataset.fileDraft ? [`draft ${area.dataset.fileDraft}`] : [])];
  const keep = () => keys.forEach((name) => sessionStorage.setItem(name, area.value));
  area.value = sessionStorage.getItem(key) ?? area.value;
  if (keys.length > 1) keep();
  area.addEventListener("input", keep);
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
      case "text": case "thought": stream(message.kind, message.text); break;
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

// ---- Lists in the form of a manifest: the form sends the items in their order on the page

let newItems = 0;
const listActions = {
  add(list) {
    const template = $(":scope > template", list);
    const place = template.dataset.place;
    newItems += 1;
    const item = parse(template.innerHTML.replaceAll(place, `n${newItems}`)).firstElementChild;
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
});

// A problem is shown on the page with the form. Another page would lose what was typed and added.
const fill = $("form[data-fill]");
fill?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const area = $("textarea[name=text]");
  const show = (text) => { $("#items-state").textContent = text; };
  // The form changes the text that the page was loaded with, so changes in the editor would be lost.
  if (area.value !== area.defaultValue) { show("The text has changes. Check and compare it first."); return; }
  const answer = await post(fill.getAttribute("action"), new FormData(fill)).catch(() => null);
  // An answer with a page has the changes, or what check says about them: the browser goes there.
  if (answer?.headers.get("content-type")?.startsWith("text/html")) { fill.submit(); return; }
  show(answer ? await answer.text() : "The server does not answer. Try again.");
});

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

// Asks again and again while the page is visible, so that a change shows within a second.
function poll(ask) {
  setTimeout(async () => {
    if (!document.hidden) await ask().catch(() => {});
    poll(ask);
  }, 800);
}

const graph = $("#graph");
if (graph) {
  poll(async () => {
    const answer = await get(`/console/graph/states?${new URLSearchParams({ known: graph.dataset.shape })}`);
    if (!answer.ok) return;
    const news = await answer.json();
    if (news.html) {
      graph.replaceChildren(parse(news.html));
      graph.dataset.shape = news.shape;
      for (const input of document.querySelectorAll("input[data-filter]")) input.dispatchEvent(new Event("input"));
    }
    for (const service of news.services) {
      const row = graph.querySelector(`tr[data-service="${CSS.escape(service.name)}"]`);
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
  });
}

// Parts of a page that the server shows anew, such as the end of a log.
const parts = document.querySelectorAll("[data-refresh]");
if (parts.length > 0) {
  poll(async () => {
    const answer = await get(location.href);
    if (!answer.ok) return;
    const fresh = parse(await answer.text());
    for (const part of parts) {
      const next = fresh.getElementById(part.id);
      if (!next || next.innerHTML === part.innerHTML) continue;
      const hadFocus = part.contains(document.activeElement);
      part.replaceChildren(...next.childNodes);
      if (hadFocus) $("[tabindex]", part)?.focus();
    }
  });
}

connect();
