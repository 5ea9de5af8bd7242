import { drawFlow } from "./chart.js";
import { icon } from "./icons.js";
import { after, announce, atExactly, byId, count, endSaying, fill, follow, make, post, say, seconds, write } from "./page.js";

const MAIN = "activity";
let news = null;
let newsAt = 0;
let stale = false; // the connection is lost
let chosen = MAIN;
let asked = null; // the instance whose kill is to be confirmed
let heardUntil = 0; // what happened up to then was read out
const opened = new Set(); // moves that are shown one by one

const group = (name) => news.groups.find((each) => each.name === name) ?? news.groups[0];

// An instance's colour follows from its name, so that it is the same on every page, for ever. Numbered
// ones (pipeline-3-4711: the third) have neighbouring numbers, and so different colours.
const HUES = 12;

function look(name) {
  const numbered = /^[a-z]+-(\d+)(-\d+)?$/i.exec(name);
  const number = numbered ? Number(numbered[1]) : [...name].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 65521, 7);
  return number % HUES;
}

// Every reading is on its way for a cycle; only what takes longer is behind.
const BEHIND_S = 2.5;
const LATE_S = 60;
const isBehind = (each) => (each.lag_s ?? 0) > BEHIND_S;

function figure(name, value, note, level) {
  return make("div", { class: "figure", "data-level": level }, make("dt", {}, name), make("dd", {}, value, note ? make("small", {}, note) : null));
}

// What Cosmos DB charges one process, the dearest requests first.
function requestUnits(name, verbs) {
  const dearest = Object.entries(verbs).filter(([, n]) => n > 0).sort((one, other) => other[1] - one[1]);
  const total = dearest.reduce((sum, [, n]) => sum + n, 0);
  return figure(`Request units: ${name}`, `${total.toFixed(1)}/s`, dearest.map(([verb, n]) => `${verb} ${n.toFixed(1)}`).join(", "));
}

function figures() {
  const main = group(MAIN);
  const dead = Object.values(news.dead_letters).reduce((sum, n) => sum + n, 0);
  if (!main) return [figure("Groups", "0")];
  const live = main.instances.filter((each) => each.live).length;
  return [
    figure("Instances", String(live), `${main.partitions.length} partitions`, live ? "" : "bad"),
    figure("Events in", `${count(main.incoming_per_s)}/s`),
    figure("Events done", `${count(main.processed_per_s)}/s`),
    figure("Lag", seconds(main.lag_s), `${count(main.lag_events)} events ${isBehind(main) ? "behind" : "on their way"}`, (main.lag_s ?? 0) > LATE_S ? "warn" : ""),
    figure("Homes", count(news.table.homes), news.table.loaded ? `table version ${count(news.table.version)}` : "loading the last day"),
    figure("Dead letters", count(dead), "", dead ? "warn" : ""),
    ...Object.entries(news.request_units_per_s).map(([name, verbs]) => requestUnits(name, verbs)),
  ];
}

function chip(partition, main) {
  const about = main.partitions.find((each) => each.id === partition);
  const behind = about && isBehind(about) ? `${count(about.lag_events)} events, ${seconds(about.lag_s)} behind` : "caught up";
  const level = about?.stuck ? "bad" : (about?.lag_s ?? 0) > LATE_S ? "warn" : "";
  return make("li", { class: "chip", "data-level": level, title: `partition ${partition}: ${behind}` }, partition);
}

const over = (state) => state === "ended" || state === "killed";

function actButton(act, title, name, style = "") {
  return make("button", { type: "button", class: `small ${style}`, "data-act": act, "data-name": name, "aria-label": `${title} ${name}` }, title);
}

// How long its last cycle took of what it should, and where the time went.
function cycleLine(cycle) {
  if (!cycle) return null;
  const share = (part) => `${part} ${Math.round((100 * cycle.parts[part]) / Math.max(cycle.seconds, 0.001))} %`;
  const rate = `${count(Math.round(cycle.events / Math.max(cycle.seconds, 0.001)))} events/s`;
  const size = cycle.bytes ? `${(cycle.bytes / 1e6).toFixed(1)} MB` : null;
  const shares = ["plan", "job", "commit"].map(share).join(", ");
  const slow = cycle.seconds > 2 * cycle.target_s ? "warn" : "";
  const words = [`cycle ${cycle.seconds.toFixed(1)} s of ${cycle.target_s} s`, `${count(cycle.events)} events`, rate, size, shares];
  return make("p", { class: "detail cycle", "data-level": slow }, words.filter(Boolean).join(" · "));
}

function instanceCard(instance, main, states) {
  const { name } = instance;
  const state = states.get(name);
  const live = instance.live && !over(state);
  const words = !live ? "gone, its leases run out" : state && state !== "running" ? state : (instance.seen_s ?? 0) > 5 ? `silent for ${seconds(instance.seen_s)}` : "running";
  const stop = state === "stopping" ? null : actButton("stop", "Stop", name);
  const buttons = state && !over(state) ? make("span", { class: "actions" }, stop, actButton("kill", "Kill", name, "danger")) : null;
  return make(
    "li",
    { class: `instance hue-${look(name)}`, "data-live": String(live), "data-name": name },
    make("div", { class: "instance-head" }, make("strong", {}, name), make("span", { class: "detail" }, words), buttons),
    cycleLine(instance.cycle),
    instance.partitions.length ? make("ul", { class: "chips", "aria-label": `Partitions of ${name}` }, ...instance.partitions.map((each) => chip(each, main))) : make("p", { class: "empty" }, "Standing by: no partition"),
  );
}

function instances() {
  const main = group(MAIN);
  if (!main) return [];
  const states = new Map(news.fleet.instances.map((each) => [each.name, each.state]));
  const known = new Set(main.instances.map((each) => each.name));
  const coming = news.fleet.instances.filter((each) => !known.has(each.name) && !over(each.state)).map((each) => ({ name: each.name, live: true, seen_s: null, partitions: [] }));
  const shown = main.instances.filter((each) => each.partitions.length || !over(states.get(each.name)));
  const cards = [...shown, ...coming].map((each) => instanceCard(each, main, states));
  const free = main.partitions.filter((each) => each.owner === null).map((each) => each.id);
  if (free.length) cards.push(make("li", { class: "instance nobody" }, make("div", { class: "instance-head" }, make("strong", {}, "Nobody"), make("span", { class: "detail" }, "waiting for an owner")), make("ul", { class: "chips" }, ...free.map((each) => chip(each, main)))));
  return cards.length ? cards : [make("li", { class: "empty" }, "No instance runs.")];
}

const TOGETHER_MS = 5000;

// Partitions that go the same way at about the same time are one move. The newest come first.
function moved() {
  const found = [];
  for (const move of news.moves) {
    const way = [move.group, move.from, move.to, move.how].join(" ");
    const known = found.find((each) => each.way === way && each.moves[each.moves.length - 1].at_ms - move.at_ms <= TOGETHER_MS);
    if (known) known.moves.push(move);
    else found.push({ way, moves: [move] });
  }
  return found;
}

function fromMoves({ way, moves }) {
  const [first] = moves;
  const route = first.from ? `${first.from} → ${first.to}` : `→ ${first.to}`;
  const names = moves.map((each) => each.partition).sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
  const text = moves.length > 1 ? `${first.group}, ${moves.length} partitions: ${route}` : `${first.group} ${names[0]}: ${route}`;
  const each = [...moves].sort((one, other) => names.indexOf(one.partition) - names.indexOf(other.partition));
  return { at: first.at_ms, key: `${moves[moves.length - 1].at_ms} ${way}`, how: first.how, badge: first.how === "failed over" ? "failover" : first.how, text, each: moves.length > 1 ? each : [] };
}

const fromText = (badge) => (each) => ({ at: each.at_ms, key: `${each.at_ms} ${each.text}`, how: badge, badge, text: each.text, each: [] });

function happened() {
  return [...moved().map(fromMoves), ...news.fleet.news.map(fromText("process")), ...news.actions.map(fromText("action"))].sort((one, other) => other.at - one.at);
}

function happenedItem(each) {
  const line = [make("time", {}, atExactly(each.at)), make("span", { class: "badge" }, each.badge), make("span", { class: "route" }, each.text)];
  if (!each.each.length) return make("li", { "data-how": each.how }, ...line);
  const parts = each.each.map((move) => make("li", {}, make("time", {}, atExactly(move.at_ms)), `partition ${move.partition}`));
  return make("li", { "data-how": each.how }, make("details", { "data-key": each.key, open: opened.has(each.key) }, make("summary", { "data-key": each.key }, ...line), make("ul", { class: "parts" }, ...parts)));
}

function partitionRow(each) {
  const state = each.stuck ? "stuck" : !each.owner ? "waiting" : !each.live ? "owner gone" : each.attempts ? `failed ${each.attempts} times` : isBehind(each) ? "behind" : "caught up";
  const level = each.stuck || (each.owner && !each.live) ? "bad" : each.attempts || !each.owner ? "warn" : "";
  return make(
    "tr",
    { "data-level": level },
    make("th", { scope: "row" }, each.id),
    make("td", { class: "who" }, each.owner ? make("span", { class: `owner hue-${look(each.owner)}` }, each.owner) : "nobody"),
    make("td", { class: "number hide-small" }, count(each.lag_events)),
    make("td", { class: "number" }, seconds(each.lag_s)),
    make("td", { class: "number hide-small" }, each.processed_per_s === null ? "?" : count(each.processed_per_s)),
    make("td", {}, make("span", { class: "badge" }, state)),
  );
}

function partitions() {
  const shown = group(chosen);
  if (!shown) return [];
  const titles = [["Partition", ""], ["Owner", "who"], ["On their way", "number hide-small"], ["Lag", "number"], ["Done/s", "number hide-small"], ["State", ""]];
  const head = make("thead", {}, make("tr", {}, ...titles.map(([title, style]) => make("th", { scope: "col", class: style }, title))));
  return [head, make("tbody", {}, ...shown.partitions.map(partitionRow))];
}

function groupButtons() {
  return news.groups.map((each) => make("button", { type: "button", "data-group": each.name, "aria-pressed": String(each.name === chosen) }, each.name));
}

function actions() {
  const found = [];
  if (news.co_detectors.available) {
    const added = news.co_detectors.added;
    found.push(make("button", { type: "button", class: "small", "data-act": "co", disabled: added }, icon("co"), added ? "CO detectors are on" : "Add CO detectors"));
  }
  if (news.fleet.available) found.push(make("button", { type: "button", class: "small primary", "data-act": "add" }, "Add an instance"));
  return found;
}

function aside() {
  const found = Object.entries(news.table.rejected).map(([reason, n]) => figure(`Rejected: ${reason}`, count(n)));
  for (const [name, n] of Object.entries(news.dead_letters)) found.push(figure(`Dead letters: ${name}`, count(n), "", "warn"));
  return found.length ? found : [figure("So far", "nothing")];
}

function draw() {
  if (!news) return;
  endSaying();
  const lost = stale ? `No connection: this is how it was at ${atExactly(newsAt)}.` : "";
  const trouble = [lost, news.failing, news.table.failing, ...news.groups.map((each) => each.failing)].filter(Boolean);
  byId("trouble").hidden = !(trouble.length || news.waiting);
  byId("trouble").className = trouble.length ? "trouble" : "note";
  write("trouble", trouble.join(" · ") || (news.waiting ? `Readings are not current yet: ${news.waiting}.` : ""));
  if (!news.groups.some((each) => each.name === chosen)) chosen = news.groups[0]?.name;
  fill(byId("figures"), figures());
  fill(byId("actions"), actions());
  fill(byId("instances"), instances());
  const events = happened();
  fill(byId("moves"), events.length ? events.map(happenedItem) : [make("li", { class: "empty" }, "Nothing since this server was started.")]);
  announce(events.filter((each) => each.at >= heardUntil).map((each) => [each.key, `${each.badge} ${each.text}`]));
  heardUntil = events[0]?.at ?? 0;
  fill(byId("group-switch"), groupButtons());
  fill(byId("partitions"), partitions());
  fill(byId("aside"), aside());
  flow();
}

function flow() {
  if (news) drawFlow(byId("flow"), group(chosen)?.samples ?? []);
}

const PATHS = { stop: "/api/operations/instances/stop", kill: "/api/operations/instances/kill" };

const state = (name) => news.fleet.instances.find((each) => each.name === name)?.state ?? "ended";
const owns = (name) => news.groups.some((each) => each.partitions.some((partition) => partition.owner === name));

async function act({ act: what, name }) {
  try {
    if (what === "add") {
      const added = (await post("/api/operations/instances")).name;
      say(`Instance ${added} is starting.`, () => owns(added) || over(state(added)));
    } else if (what === "co") {
      await post("/api/operations/co-detectors");
      say("Every home gets a carbon monoxide detector.", () => news.co_detectors.added);
    } else {
      await post(PATHS[what], { name });
      const words = what === "kill" ? `${name} was killed; the others take over when its leases run out.` : `${name} is stopping and hands its partitions on.`;
      say(words, () => !owns(name) && over(state(name)));
    }
  } catch (error) {
    say(`That did not work: ${error.message}`, after(15000));
  }
}

async function press(button) {
  if (button.dataset.act === "kill") return ask(button.dataset.name);
  button.disabled = true;
  await act(button.dataset);
  button.disabled = false;
}

// A kill is asked about once: it is not undone.
function ask(name) {
  asked = name;
  write("ask-title", `Kill ${name}?`);
  byId("ask").showModal();
}

function answer(yes) {
  const name = asked;
  asked = null;
  byId("ask").close();
  [...document.querySelectorAll("button[data-act=kill]")].find((each) => each.dataset.name === name)?.focus();
  if (yes && name) act({ act: "kill", name });
}

byId("ask-yes").addEventListener("click", () => answer(true));
byId("ask-no").addEventListener("click", () => answer(false));
byId("ask").addEventListener("cancel", (event) => {
  event.preventDefault();
  answer(false);
});

byId("moves").addEventListener(
  "toggle",
  (event) => {
    const { key } = event.target.dataset;
    if (event.target.open) opened.add(key);
    else opened.delete(key);
  },
  true,
);

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.group) {
    chosen = button.dataset.group;
    draw();
  } else if (button.dataset.act) press(button);
});

new ResizeObserver(flow).observe(byId("flow"));

follow(
  "/api/operations/live",
  "operations",
  (found) => {
    news = found;
    newsAt = Date.now();
    stale = false;
    draw();
  },
  () => {
    stale = true;
    draw();
  },
);
