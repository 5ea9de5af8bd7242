import { drawLanes, fillTable } from "./chart.js";
import { KINDS, SILENT_AFTER_S } from "./domain.js";
import { icon } from "./icons.js";
import { after, ago, announce, at, atExactly, byId, endSaying, fill, follow, iso, make, onDay, post, say, write } from "./page.js";

const STATES = {
  quiet: { icon: "quiet", text: "All quiet" },
  open: { icon: "door-open", text: "Open" },
  alarm: { icon: "alarm", text: "Alarm" },
  silent: { icon: "silent", text: "No news" },
  loading: { icon: "wait", text: "One moment" },
  starting: { icon: "wait", text: "Starting" },
};

let home = null;
let day = null;
let shown = "hour";
let stale = false; // the connection is lost, and what is shown may no longer be true
let offset = 0; // between the server's clock and ours

const now = () => Date.now() + offset;
const DAY_MS = 86400000;

const short = (kind) => KINDS[kind].short_title.toLowerCase();

function headline(state, why) {
  if (state === "alarm") return `Alarm: ${why.map((kind) => KINDS[kind].alarm_text).join(" and ")}`;
  if (state === "open") return `${why.map((kind, n) => (n ? short(kind) : KINDS[kind].title)).join(" and ")} open`;
  return STATES[state].text;
}

function detail(state, sensors) {
  if (state === "silent") return sensors.length ? `None of your sensors has reported for more than ${SILENT_AFTER_S / 60} minutes.` : "No sensor of this home has reported in the last day.";
  if (state === "loading") return "The readings of your home are being fetched.";
  if (state === "alarm") return "Go and look only if it is safe. In danger, leave the house and call for help.";
  const mute = sensors.filter((each) => each.silent).map((each) => short(each.kind));
  const low = sensors.filter((each) => each.battery_low).map((each) => short(each.kind));
  const notes = [];
  if (mute.length) notes.push(`No reading from: ${mute.join(", ")}.`);
  if (low.length) notes.push(`Battery low: ${low.join(", ")}.`);
  const over = home.alerts.find((each) => each.ended_ms !== null);
  if (over && now() - over.ended_ms < DAY_MS) notes.push(`The last alarm (${alertText(over)}) is over since ${since(over.ended_ms, now())}.`);
  return notes.join(" ") || "All sensors report, no alarm.";
}

const activity = (sensor) => (sensor.active ? KINDS[sensor.kind].active_text : KINDS[sensor.kind].inactive_text);

function condition(sensor) {
  const { unit } = KINDS[sensor.kind];
  return unit ? `${sensor.value} ${unit}` : activity(sensor);
}

function sensorIcon(sensor) {
  const open = sensor.active && KINDS[sensor.kind].is_opening;
  return icon(open ? `${sensor.kind}-open` : sensor.kind);
}

function sensorCard(sensor) {
  const { title, unit, alarm_text: alarm, is_opening: opening } = KINDS[sensor.kind];
  const level = sensor.silent ? "silent" : !sensor.active ? "calm" : alarm ? "alarm" : opening ? "open" : "busy";
  const battery = sensor.battery === null ? null : make("span", { class: `battery${sensor.battery_low ? " low" : ""}` }, icon("battery"), `${sensor.battery} %${sensor.battery_low ? " low" : ""}`);
  return make(
    "li",
    { class: "sensor", "data-level": level },
    make("span", { class: "sensor-icon" }, sensorIcon(sensor)),
    make("span", { class: "sensor-name" }, title),
    make("strong", { class: "sensor-state" }, sensor.silent ? "Silent" : condition(sensor), unit && !sensor.silent ? make("small", {}, ` ${activity(sensor)}`) : null),
    make("span", { class: "sensor-foot" }, make("time", { datetime: iso(sensor.ts_ms), title: atExactly(sensor.ts_ms) }, ago(sensor.ts_ms, now())), battery),
  );
}

// Alerts are documents that others may have written: of any kind.
function alertText(alert) {
  const kind = KINDS[alert.kind];
  if (!kind?.alarm_text) return alert.kind;
  return kind.unit ? `${kind.alarm_text}: ${alert.value} ${kind.unit}` : kind.alarm_text;
}

// The day is said only where it is another one.
const since = (ms, day) => (new Date(ms).toDateString() === new Date(day).toDateString() ? at(ms) : onDay(ms));

function alertItem(alert) {
  return make(
    "li",
    { "data-id": alert.id },
    make("span", { class: "alert-icon" }, icon(KINDS[alert.kind]?.alarm_text ? alert.kind : "alarm")),
    make("span", { class: "alert-text" }, alertText(alert)),
    make("span", { class: "alert-when" }, make("time", { datetime: iso(alert.ts_ms) }, onDay(alert.ts_ms)), alert.ended_ms === null ? null : make("small", { class: "alert-over" }, "over since ", make("time", { datetime: iso(alert.ended_ms) }, since(alert.ended_ms, alert.ts_ms)))),
  );
}

const kindsShown = () => Object.keys(KINDS).filter((kind) => home.sensors.some((sensor) => sensor.kind === kind));

// While everything starts, silence means nothing yet.
const starting = () => home.waiting && ["silent", "loading"].includes(home.state);

function hero() {
  if (!stale && starting()) return { state: "loading", sign: "wait", title: STATES.starting.text, text: `Starting: ${home.waiting}.` };
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

function drillButton(kind) {
  return make("button", { type: "button", class: "small", "data-drill": kind }, icon(kind), KINDS[kind].drill_text);
}

async function drill(button) {
  button.disabled = true;
  try {
    const { drill: kind } = button.dataset;
    await post("/api/home/drill", { kind });
    const late = after(30000);
    say(`${KINDS[kind].drill_text}: sent to the hub; the page shows it in a second or two.`, () => home.why.includes(kind) || late());
  } catch (error) {
    say(`That did not work: ${error.message}`, after(15000));
  } finally {
    button.disabled = false;
  }
}

function draw() {
  if (!home && !stale) return;
  drawHero();
  byId("main").classList.toggle("stale", stale);
  endSaying();
  if (!home) return;
  const loading = home.loading && home.state !== "loading" ? "Older readings are still being fetched; the charts fill up by themselves." : "";
  const waiting = home.waiting && !starting() ? `Readings are not current yet: ${home.waiting}.` : "";
  byId("trouble").hidden = !(home.failing || waiting || loading);
  byId("trouble").className = home.failing ? "trouble" : "note";
  write("trouble", home.failing || waiting || loading);
  byId("drills").hidden = !home.drills.length;
  fill(byId("drills"), home.drills.length ? [make("span", { class: "detail" }, "This is a demo. Try it: "), ...home.drills.map(drillButton)] : []);
  fill(byId("sensors"), home.sensors.length ? home.sensors.map(sensorCard) : [make("li", { class: "empty" }, home.loading || home.waiting ? "One moment." : "No sensor has reported yet.")]);
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

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-drill]");
  if (button) drill(button);
});
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
