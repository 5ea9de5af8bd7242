// What both pages need: making elements, times in words, and a stream that comes back by itself.

export function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

// Only what differs, so that what is the same is not read out again.
export function write(id, words) {
  const place = byId(id);
  if (place.textContent !== words) place.textContent = words;
}

// As the browser's language writes a clock, everywhere: with AM and PM, or with 24 hours.
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const exact = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dated = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

// A time that no calendar has must not end the page.
const known = (ms) => Math.abs(ms) <= 8.64e15;
const inWords = (format) => (ms) => (known(ms) ? format.format(ms) : "at an unknown time");

export const at = inWords(clock);
export const atExactly = inWords(exact);
export const onDay = inWords(dated);
export const iso = (ms) => (known(ms) ? new Date(ms).toISOString() : null);

export function ago(ms, now) {
  const s = Math.max(0, Math.round((now - ms) / 1000));
  if (s < 2) return "just now";
  if (s < 90) return `${s} s ago`;
  if (s < 5400) return `${Math.round(s / 60)} min ago`;
  if (s < 129600) return `${Math.round(s / 3600)} h ago`;
  return `${Math.round(s / 86400)} days ago`;
}

export function seconds(s) {
  if (s === null || s === undefined) return "?";
  if (s < 10) return s ? `${s.toFixed(1)} s` : "0 s";
  if (s < 120) return `${Math.round(s)} s`;
  return s < 7200 ? `${(s / 60).toFixed(1)} min` : `${(s / 3600).toFixed(1)} h`;
}

export const count = (n) => (n === null || n === undefined ? "?" : Math.round(n).toLocaleString("en"));

// Puts new content in place only where it differs, so that focus and selection stay.
export function fill(place, children) {
  const wanted = document.createElement(place.tagName);
  wanted.append(...children);
  if (wanted.innerHTML === place.innerHTML) return false;
  const held = place.contains(document.activeElement) ? { ...document.activeElement.dataset } : null;
  place.replaceChildren(...wanted.childNodes);
  if (held) [...place.querySelectorAll("button, summary")].find((each) => same(each.dataset, held))?.focus();
  return true;
}

const same = (one, other) => JSON.stringify({ ...one }) === JSON.stringify(other);

// For who listens to the page: of a list, the newest first, only what is new. Pairs of id and words.
const heard = new Set();

export function announce(items) {
  const fresh = items.find(([id]) => !heard.has(id));
  if (fresh && heard.size) byId("news").textContent = fresh[1];
  heard.add("the list as it was at first");
  for (const [id] of items) heard.add(id);
}

// What came of a click, until it can be seen elsewhere on the page: isOver says so.
const READ_MS = 5000;
let saying = null;

export function say(words, isOver) {
  saying = { since: Date.now(), isOver };
  write("said", words);
}

export function endSaying() {
  if (!saying || Date.now() - saying.since < READ_MS || !saying.isOver()) return;
  saying = null;
  write("said", "");
}

export const after = (ms) => {
  const end = Date.now() + ms;
  return () => Date.now() > end;
};

const STALE_MS = 20000;

// Follows a stream of server-sent events; onData gets each state, parsed. onStale is called when
// nothing has come for so long that what is shown may no longer be true.
export function follow(path, event, onData, onStale = () => {}) {
  const sign = byId("live");
  let last = Date.now();
  const show = (state, words) => {
    if (sign.dataset.live !== state) sign.dataset.live = state;
    write("live-text", words);
  };
  const source = new EventSource(path);
  source.addEventListener(event, (message) => {
    last = Date.now();
    show("on", "Live");
    onData(JSON.parse(message.data));
  });
  source.addEventListener("signed-out", () => location.assign("/sign-in"));
  source.onerror = () => {
    show("off", "No connection, trying again");
    if (source.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
  };
  setInterval(() => {
    if (Date.now() - last <= STALE_MS) return;
    show("off", "No connection, trying again");
    onStale();
  }, 1000);
}

export async function post(path, body) {
  const answer = await fetch(path, {
    method: "POST",
    headers: body ? { "Content-Type": "application/json" } : {},
    body: body ? JSON.stringify(body) : undefined,
  });
  const found = await answer.json().catch(() => ({}));
  if (answer.status === 401) location.assign("/sign-in");
  if (!answer.ok) throw new Error(found.error ?? `status ${answer.status}`);
  return found;
}
