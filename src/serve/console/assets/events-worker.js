// Holds the one event stream of this browser, and passes its messages on to all tabs.
const tabs = new Map();
const SILENCE = 150_000;
let source = null;
let timer = null;
let delay = 250;

const tell = (message) => { for (const port of tabs.keys()) port.postMessage(message); };

// What the tabs show: sessions as `watch`, pages as `page`.
function query() {
  const all = (field) => [...new Set([...tabs.values()].map((tab) => tab[field]).filter(Boolean))].sort();
  return new URLSearchParams(["watch", "page"].flatMap((field) => all(field).map((name) => [field, name])));
}

function open() {
  clearTimeout(timer);
  source?.close();
  source = null;
  if (tabs.size === 0) return;
  const current = new EventSource(`/console/events?${query()}`);
  source = current;
  current.onopen = () => { delay = 250; tell({ kind: "online" }); };
  current.onmessage = (event) => tell(JSON.parse(event.data));
  current.onerror = () => {
    current.close();
    if (source !== current) return;
    tell({ kind: "offline" });
    // The stream does not say why it ended: a login that is over, or a server that restarts.
    fetch("/console/alive", { headers: { "x-console-script": "1", "x-console-passive": "1" } })
      .then((answer) => { if (answer.status === 401) tell({ kind: "login" }); })
      .catch(() => {});
    timer = setTimeout(open, delay);
    delay = Math.min(delay * 2, 5_000);
  };
}

self.onconnect = (event) => {
  const port = event.ports[0];
  port.onmessage = ({ data }) => {
    const before = tabs.get(port);
    if (data.kind === "leave") {
      tabs.delete(port);
      // Other tabs keep the stream; without one it ends.
      if (tabs.size === 0) open();
      return;
    }
    tabs.set(port, { watch: data.watch ?? null, page: data.page ?? null, heard: Date.now() });
    if (data.kind === "join" || !before) open();
  };
};

setInterval(() => {
  const size = tabs.size;
  for (const [port, tab] of tabs) if (Date.now() - tab.heard > SILENCE) tabs.delete(port);
  if (tabs.size !== size) open();
}, 30_000);
