import { drawFlow } from "./chart.js";
import { icon } from "./icons.js";
import { atExactly, byId, count, fill, follow, make, post, seconds } from "./page.js";

const MAIN = "activity";
let news = null;
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

function instanceCard(instance, main, states) {
  const state = states.get(instance.name);
  const words = !instance.live ? "gone, its leases run out" : state && state !== "running" ? state : (instance.seen_s ?? 0) > 5 ? `silent for ${seconds(instance.seen_s)}` : "running";
  const managed = states.has(instance.name) && state !== "ended";
  const buttons = managed
    ? make(
        "span",
        { class: "actions" },
        make("button", { type: "button", class: "small", "data-act": "stop", "data-name": instance.name, "aria-label": `Stop ${instance.name}` }, "Stop"),
        make("button", { type: "button", class: "small danger", "data-act": "kill", "data-name": instance.name, "aria-label": `Kill ${instance.name}` }, "Kill"),
      )
    : null;
  return make(
    "li",
    { class: `instance hue-${look(instance.name)}`, "data-live": instance.live, "data-name": instance.name },
    make("div", { class: "instance-head" }, make("strong", {}, instance.name), make("span", { class: "detail" }, words), buttons),
    instance.partitions.length ? make("ul", { class: "chips", "aria-label": `Partitions of ${instance.name}` }, ...instance.partitions.map((each) => chip(each, main))) : make("p", { class: "empty" }, "Standing by: no partition"),
  );
}

function instances() {
  const main = group(MAIN);
  if (!main) return [];
  const states = new Map(news.fleet.instances.map((each) => [each.name, each.state]));
  const known = new Set(main.instances.map((each) => each.name));
  const coming = news.fleet.instances.filter((each) => !known.has(each.name) && each.state !== "ended").map((each) => ({ name: each.name, live: true, seen_s: null, partitions: [] }));
  const cards = [...main.instances, ...coming].map((each) => instanceCard(each, main, states));
  const free = main.partitions.filter((each) => each.owner === null).map((each) => each.id);
  if (free.length) cards.push(make("li", { class: "instance nobody" }, make("div", { class: "instance-head" }, make("strong", {}, "Nobody"), make("span", { class: "detail" }, "waiting for an owner")), make("ul", { class: "chips" }, ...free.map((each) => chip(each, main)))));
  return cards.length ? cards : [make("li", { class: "empty" }, "No instance runs.")];
}

function moveItem(move) {
  const badge = { claimed: "claimed", moved: "moved", "failed over": "failover" }[move.how] ?? move.how;
  const route = move.from ? `${move.from} → ${move.to}` : `→ ${move.to}`;
  return make(
    "li",
    { "data-how": move.how },
    make("time", {}, atExactly(move.at_ms)),
    make("span", { class: "badge" }, badge),
    make("span", { class: "route" }, `${move.group} ${move.partition}: ${route}`),
  );
}

function newsItem(each) {
  return make("li", { "data-how": "news" }, make("time", {}, atExactly(each.at_ms)), make("span", { class: "badge" }, "process"), make("span", { class: "route" }, each.text));
}

function happened() {
  const all = [...news.moves.map((each) => [each.at_ms, moveItem(each)]), ...news.fleet.news.map((each) => [each.at_ms, newsItem(each)])];
  const items = all.sort(([one], [other]) => other - one).map(([, item]) => item);
  return items.length ? items : [make("li", { class: "empty" }, "Nothing since this server was started.")];
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
  const trouble = [news.failing, news.table.failing, ...news.groups.map((each) => each.failing)].filter(Boolean);
  byId("trouble").hidden = !trouble.length;
  byId("trouble").textContent = trouble.join(" · ");
  if (!news.groups.some((each) => each.name === chosen)) chosen = news.groups[0]?.name;
  fill(byId("figures"), figures());
  fill(byId("actions"), actions());
  fill(byId("instances"), instances());
  fill(byId("moves"), happened());
  fill(byId("group-switch"), groupButtons());
  fill(byId("partitions"), partitions());
  fill(byId("aside"), aside());
  drawFlow(byId("flow"), group(chosen)?.samples ?? []);
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

follow("/api/operations/live", "operations", (found) => {
  news = found;
  draw();
});
