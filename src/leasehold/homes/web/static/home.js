import { drawLanes, fillTable, KINDS } from "./chart.js";
import { icon } from "./icons.js";
import { ago, announce, at, atExactly, byId, fill, follow, iso, make, onDay, write } from "./page.js";

const STATES = {
  quiet: { icon: "quiet", text: "All quiet" },
  open: { icon: "door-open", text: "Open" },
  alarm: { icon: "alarm", text: "Alarm" },
  silent: { icon: "silent", text: "No news" },
  loading: { icon: "wait", text: "One moment" },
};
const ALARMS = { glass: "Glass was broken", co: "Carbon monoxide" };

let home = null;
let day = null;
let shown = "hour";
let stale = false; // the connection is lost, and what is shown may no longer be true
let offset = 0; // between the server's clock and ours

const now = () => Date.now() + offset;

function headline(state, why) {
  if (state === "alarm") return `Alarm: ${why.map((kind) => ALARMS[kind] ?? kind).join(" and ")}`;
  if (state === "open") return `${why.map((kind) => KINDS[kind].name).join(" and ")} open`.replace(/and D/, "and d").replace(/and W/, "and w");
  return STATES[state].text;
}

function detail(state, sensors) {
  if (state === "silent") return sensors.length ? "None of your sensors has reported for more than five minutes." : "No sensor of this home has reported in the last day.";
  if (state === "loading") return "The readings of your home are being fetched.";
  if (state === "alarm") return "Go and look only if it is safe. In danger, leave the house and call for help.";
  const mute = sensors.filter((each) => each.silent).map((each) => KINDS[each.kind].name.toLowerCase());
  const low = sensors.filter((each) => each.battery_low).map((each) => KINDS[each.kind].name.toLowerCase());
  const notes = [];
  if (mute.length) notes.push(`No reading from: ${mute.join(", ")}.`);
  if (low.length) notes.push(`Battery low: ${low.join(", ")}.`);
  return notes.join(" ") || "All sensors report, no alarm.";
}

function condition(sensor) {
  if (sensor.kind === "motion") return sensor.active ? "Motion" : "No motion";
  if (sensor.kind === "glass") return sensor.active ? "Broken" : "Intact";
  if (sensor.kind === "co") return `${sensor.value} ppm`;
  return sensor.active ? "Open" : "Closed";
}

function sensorIcon(sensor) {
  const open = sensor.active && ["door", "window"].includes(sensor.kind);
  return icon(open ? `${sensor.kind}-open` : sensor.kind);
}

function sensorCard(sensor) {
  const level = sensor.silent ? "silent" : !sensor.active ? "calm" : ["glass", "co"].includes(sensor.kind) ? "alarm" : sensor.kind === "motion" ? "busy" : "open";
  const battery = sensor.battery === null ? null : make("span", { class: `battery${sensor.battery_low ? " low" : ""}` }, icon("battery"), `${sensor.battery} %${sensor.battery_low ? " low" : ""}`);
  return make(
    "li",
    { class: "sensor", "data-level": level },
    make("span", { class: "sensor-icon" }, sensorIcon(sensor)),
    make("span", { class: "sensor-name" }, sensor.kind === "co" ? "Carbon monoxide" : KINDS[sensor.kind].name),
    make("strong", { class: "sensor-state" }, sensor.silent ? "Silent" : condition(sensor), sensor.kind === "co" && !sensor.silent ? make("small", {}, sensor.active ? " dangerous" : " normal") : null),
    make("span", { class: "sensor-foot" }, make("time", { datetime: iso(sensor.ts_ms), title: atExactly(sensor.ts_ms) }, ago(sensor.ts_ms, now())), battery),
  );
}

const alertText = (alert) => (alert.kind === "glass" ? "Glass was broken" : alert.kind === "co" ? `Carbon monoxide: ${alert.value} ppm` : alert.kind);

function alertItem(alert) {
  return make(
    "li",
    { "data-id": alert.id },
    make("span", { class: "alert-icon" }, icon(alert.kind === "co" ? "co" : alert.kind === "glass" ? "glass" : "alarm")),
    make("span", { class: "alert-text" }, alertText(alert)),
    make("time", { datetime: iso(alert.ts_ms) }, onDay(alert.ts_ms)),
  );
}

const kindsShown = () => Object.keys(KINDS).filter((kind) => home.sensors.some((sensor) => sensor.kind === kind));

function hero() {
  if (!stale) {
    const one = home.state === "open" && home.why.length === 1;
    return { state: home.state, sign: one ? `${home.why[0]}-open` : STATES[home.state].icon, title: headline(home.state, home.why), text: detail(home.state, home.sensors) };
  }
  const last = home ? `Last known: ${headline(home.state, home.why)}, at ${at(home.now_ms)}. What happens now is not shown.` : "Your home cannot be reached. It is tried again by itself.";
  return { state: "silent", sign: "silent", title: "No connection", text: last };
}

function drawHero() {
  const { state, sign, title, text } = hero();
  const place = byId("hero");
  if (place.dataset.sign !== sign) byId("state-icon").replaceChildren(icon(sign));
  place.dataset.sign = sign;
  place.dataset.state = state;
  byId("state").setAttribute("aria-live", state === "alarm" ? "assertive" : "polite");
  write("state", title);
  write("detail", text);
  document.title = `${title} · My home`;
}

function draw() {
  if (!home && !stale) return;
  drawHero();
  byId("main").classList.toggle("stale", stale);
  if (!home) return;
  const loading = home.loading && home.state !== "loading" ? "Older readings are still being fetched; the charts fill up by themselves." : "";
  byId("trouble").hidden = !(home.failing || loading);
  byId("trouble").className = home.failing ? "trouble" : "note";
  write("trouble", home.failing || loading);
  fill(byId("sensors"), home.sensors.length ? home.sensors.map(sensorCard) : [make("li", { class: "empty" }, home.loading ? "One moment." : "No sensor has reported yet.")]);
  fill(byId("alerts"), home.alerts.length ? home.alerts.map(alertItem) : [make("li", { class: "empty" }, "No alerts. Good.")]);
  announce(home.alerts.map((each) => [each.id, `New alert: ${alertText(each)}, ${onDay(each.ts_ms)}`]));
}

function drawChart() {
  if (!home) return;
  const series = shown === "hour" ? home.hour : day;
  if (!series) return;
  const kinds = kindsShown();
  if (!kinds.length) {
    byId("chart").replaceChildren(make("p", { class: "empty" }, "Nothing to show yet."));
    return;
  }
  drawLanes(byId("chart"), series, kinds);
  if (byId("table").closest("details").open) fillTable(byId("table"), series, kinds);
}

async function show(which) {
  shown = which;
  byId("show-hour").setAttribute("aria-pressed", which === "hour");
  byId("show-day").setAttribute("aria-pressed", which === "day");
  if (which === "day") await loadDay();
  drawChart();
}

async function loadDay() {
  const answer = await fetch("/api/home/day").catch(() => null);
  if (answer?.status === 401) location.assign("/sign-in");
  if (answer?.ok) day = await answer.json();
}

byId("show-hour").addEventListener("click", () => show("hour"));
byId("show-day").addEventListener("click", () => show("day"));
byId("table").closest("details").addEventListener("toggle", drawChart);
new ResizeObserver(drawChart).observe(byId("chart"));
byId("state-icon").replaceChildren(icon("wait"));

setInterval(draw, 1000);
setInterval(async () => {
  if (shown === "day") await loadDay();
  drawChart();
}, 30000);

follow(
  "/api/home/live",
  "home",
  (news) => {
    home = news;
    stale = false;
    offset = news.now_ms - Date.now();
    draw();
    drawChart();
  },
  () => {
    stale = true;
    draw();
  },
);
