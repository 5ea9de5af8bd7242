import { drawFlow } from "./chart.js";
import { icon } from "./icons.js";
import { announce, atExactly, byId, count, fill, follow, make, post, seconds, write } from "./page.js";

const MAIN = "activity";
let news = null;
let newsAt = 0;
let stale = false; // the connection is lost
let chosen = MAIN;
const hues = new Map();

const group = (name) => news.groups.find((each) => each.name === name) ?? news.groups[0];

// Each instance keeps its colour and letter for as long as the page is open.
function look(name) {
  if (!hues.has(name)) hues.set(name, hues.size % 8);
  return hues.get(name);
}

function figure(name, value, note, level) {
  return make("div", { class: "figure", "data-level": level }, make("dt", {}, name), make("dd", {}, value, note ? make("small", {}, note) : null));
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
    figure("Behind", count(main.lag_events), `events, ${seconds(main.lag_s)}`, (main.lag_s ?? 0) > 60 ? "warn" : ""),
    figure("Homes", count(news.table.homes), news.table.loaded ? `table version ${count(news.table.version)}` : "loading the last day"),
    figure("Dead letters", count(dead), "", dead ? "warn" : ""),
  ];
}

function chip(partition, main) {
  const about = main.partitions.find((each) => each.id === partition);
  const behind = about ? about.lag_events : 0;
  const level = about?.stuck ? "bad" : (about?.lag_s ?? 0) > 60 ? "warn" : "";
  return make("li", { class: "chip", "data-level": level, title: `partition ${partition}: ${count(behind)} events behind` }, partition);
}

const over = (state) => state === "ended" || state === "killed";

function actButton(act, title, name, style = "") {
  return make("button", { type: "button", class: `small ${style}`, "data-act": act, "data-name": name, "aria-label": `${title} ${name}` }, title);
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

function fromMove(move) {
  const route = move.from ? `${move.from} → ${move.to}` : `→ ${move.to}`;
  return { at: move.at_ms, how: move.how, badge: move.how === "failed over" ? "failover" : move.how, text: `${move.group} ${move.partition}: ${route}` };
}

const fromProcess = (each) => ({ at: each.at_ms, how: "news", badge: "process", text: each.text });

function happened() {
  return [...news.moves.map(fromMove), ...news.fleet.news.map(fromProcess)].sort((one, other) => other.at - one.at);
}

function happenedItem(each) {
  return make("li", { "data-how": each.how }, make("time", {}, atExactly(each.at)), make("span", { class: "badge" }, each.badge), make("span", { class: "route" }, each.text));
}

function partitionRow(each) {
  const state = each.stuck ? "stuck" : !each.owner ? "waiting" : !each.live ? "owner gone" : each.attempts ? `failed ${each.attempts} times` : each.lag_events ? "behind" : "caught up";
  const level = each.stuck || (each.owner && !each.live) ? "bad" : each.attempts || !each.owner ? "warn" : "";
  return make(
    "tr",
    { "data-level": level },
    make("th", { scope: "row" }, each.id),
    make("td", {}, each.owner ? make("span", { class: `owner hue-${look(each.owner)}` }, each.owner) : "nobody"),
    make("td", { class: "number" }, count(each.lag_events)),
    make("td", { class: "number" }, seconds(each.lag_s)),
    make("td", { class: "number" }, each.processed_per_s === null ? "?" : count(each.processed_per_s)),
    make("td", {}, make("span", { class: "badge" }, state)),
  );
}

function partitions() {
  const shown = group(chosen);
  if (!shown) return [];
  const titles = ["Partition", "Owner", "Events behind", "Seconds behind", "Done/s", "State"];
  const head = make("thead", {}, make("tr", {}, ...titles.map((title, n) => make("th", { scope: "col", class: n > 1 && n < 5 ? "number" : "" }, title))));
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
  const lost = stale ? `No connection: this is how it was at ${atExactly(newsAt)}.` : "";
  const trouble = [lost, news.failing, news.table.failing, ...news.groups.map((each) => each.failing)].filter(Boolean);
  byId("trouble").hidden = !trouble.length;
  write("trouble", trouble.join(" · "));
  if (!news.groups.some((each) => each.name === chosen)) chosen = news.groups[0]?.name;
  fill(byId("figures"), figures());
  fill(byId("actions"), actions());
  fill(byId("instances"), instances());
  const events = happened();
  fill(byId("moves"), events.length ? events.map(happenedItem) : [make("li", { class: "empty" }, "Nothing since this server was started.")]);
  announce(events.map((each) => [`${each.at} ${each.text}`, `${each.badge} ${each.text}`]));
  fill(byId("group-switch"), groupButtons());
  fill(byId("partitions"), partitions());
  fill(byId("aside"), aside());
  flow();
}

function flow() {
  if (news) drawFlow(byId("flow"), group(chosen)?.samples ?? []);
}

const PATHS = { stop: "/api/operations/instances/stop", kill: "/api/operations/instances/kill" };

async function act(button) {
  const { act: what, name } = button.dataset;
  const said = byId("said");
  button.disabled = true;
  try {
    if (what === "add") said.textContent = `Instance ${(await post("/api/operations/instances")).name} is starting.`;
    else if (what === "co") {
      await post("/api/operations/co-detectors");
      said.textContent = "Every home gets a carbon monoxide detector.";
    } else {
      await post(PATHS[what], { name });
      said.textContent = what === "kill" ? `${name} was killed; the others take over when its leases run out.` : `${name} is stopping and hands its partitions on.`;
    }
  } catch (error) {
    said.textContent = `That did not work: ${error.message}`;
  } finally {
    button.disabled = false;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.group) {
    chosen = button.dataset.group;
    draw();
  } else if (button.dataset.act) act(button);
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
