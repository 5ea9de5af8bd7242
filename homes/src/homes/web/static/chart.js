// Charts as SVG, made here: one lane per kind of sensor, drawn at the width that there is.

import { KINDS } from "./domain.js";
import { icon, svg } from "./icons.js";
import { at, atExactly, make } from "./page.js";

const LANE = 40;
const MEASURED_LANE = 64;

export function drawLanes(place, series, kinds) {
  const lanes = kinds.map((kind) => lane(kind, series));
  const axis = make("div", { class: "axis" });
  const axisRow = make("div", { class: "lane" }, make("span", { class: "lane-name" }), axis);
  place.replaceChildren(...lanes.map((each) => each.row), axisRow);
  const width = axis.clientWidth;
  if (!width) return;
  for (const each of lanes) each.draw(width);
  axis.append(timeAxis(series, width));
}

function lane(kind, series) {
  const levels = series.levels[kind];
  const canvas = make("div", { class: "lane-canvas" });
  const name = make("span", { class: "lane-name" }, icon(kind), KINDS[kind].short_title);
  const row = make("div", { class: `lane ${kind}` }, name, canvas);
  const height = KINDS[kind].unit ? MEASURED_LANE : LANE;
  return { row, draw: (width) => canvas.append(bars(kind, levels, series, width, height)) };
}

function bars(kind, levels, series, width, height) {
  const { unit, active_from: limit, events_noun: noun } = KINDS[kind];
  const top = Math.max(unit ? limit * 1.2 : 1, ...levels.map((v) => v ?? 0));
  const drawn = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": inWords(kind, levels, series) });
  const step = width / levels.length;
  const gap = step > 6 ? 1.5 : 0.5;
  const base = height - 3;
  levels.forEach((level, n) => {
    const x = n * step + gap / 2;
    const wide = Math.max(1, step - gap);
    if (level === null) {
      drawn.append(svg("rect", { class: "none", x, y: base - 5, width: wide, height: 6, rx: 1 }));
      return;
    }
    const tall = level > 0 ? Math.max(4, (level / top) * (base - 4)) : 2;
    const bar = svg("rect", { class: level > 0 ? "on" : "off", x, y: base - tall + 1, width: wide, height: tall, rx: Math.min(2, wide / 3) });
    if (unit && level >= limit) bar.classList.add("over");
    const what = unit ? `${level} ${unit}` : level ? `${level} ${level === 1 ? noun.slice(0, -1) : noun}` : "all quiet";
    bar.append(svg("title", {}, `${at(series.start_ms + n * series.step_s * 1000)}: ${what}`));
    drawn.append(bar);
  });
  if (unit) {
    const y = base - (limit / top) * (base - 4);
    drawn.append(svg("line", { class: "limit", x1: 0, x2: width, y1: y, y2: y }));
    const words = svg("text", { class: "limit-text", x: width, y: y - 4, "text-anchor": "end" });
    words.textContent = `danger from ${limit} ${unit}`;
    drawn.append(words);
  }
  return drawn;
}

function inWords(kind, levels, series) {
  const { title, short_title: short, unit, events_noun: noun } = KINDS[kind];
  const known = levels.filter((v) => v !== null);
  const span = series.step_s === 60 ? "the last hour" : "the last 24 hours";
  if (!known.length) return `${short}: no reading in ${span}`;
  if (unit) return `${title}: at most ${Math.max(...known)} ${unit} in ${span}`;
  const total = known.reduce((sum, v) => sum + v, 0);
  if (!total) return `${short}: nothing noticed in ${span}`;
  let last = levels.length - 1;
  while (!levels[last]) last -= 1;
  return `${short}: ${total} ${noun} in ${span}, last at ${at(series.start_ms + last * series.step_s * 1000)}`;
}

const steps = (series) => Object.values(series.levels)[0].length;

function timeAxis(series, width) {
  const ends = series.start_ms + steps(series) * series.step_s * 1000;
  const every = spacing(ends - series.start_ms, width, at(ends), [5, 10, 15, 30, 60, 120, 180, 360, 720].map((minutes) => minutes * 60000));
  const drawn = svg("svg", { width, height: 18, "aria-hidden": "true" });
  const offset = new Date(series.start_ms).getTimezoneOffset() * 60000;
  for (let t = Math.ceil((series.start_ms - offset) / every) * every + offset; t < ends; t += every) {
    const x = ((t - series.start_ms) / (ends - series.start_ms)) * width;
    drawn.append(svg("line", { class: "tick", x1: x, x2: x, y1: 0, y2: 4 }));
    drawn.append(tickText(x, width, at(t)));
  }
  return drawn;
}

// About the room that a clock takes, with or without AM and PM.
const room = (words) => 6.6 * words.length + 8;

// The smallest step of time whose labels do not touch; like is one of them.
function spacing(span, width, like, steps) {
  return steps.find((step) => (step / span) * width >= 1.3 * room(like)) ?? steps[steps.length - 1];
}

// Empty where it would be cut off at an edge.
function tickText(x, width, words) {
  const drawn = svg("text", { x, y: 15, "text-anchor": "middle" });
  const half = room(words) / 2 - 4;
  if (x >= half && x <= width - half) drawn.textContent = words;
  return drawn;
}

export function fillTable(table, series, kinds) {
  const head = make("tr", {}, make("th", { scope: "col" }, "From"), ...kinds.map((kind) => make("th", { scope: "col" }, KINDS[kind].short_title)));
  const rows = Array.from({ length: steps(series) }, (_, n) => {
    const cells = kinds.map((kind) => {
      const level = series.levels[kind][n];
      return make("td", {}, level === null ? "–" : KINDS[kind].unit ? `${level} ${KINDS[kind].unit}` : String(level));
    });
    return make("tr", {}, make("th", { scope: "row" }, at(series.start_ms + n * series.step_s * 1000)), ...cells);
  });
  table.replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows.reverse()));
}

// Two lines over time, for operators: what comes in and what is done; below, what is on its way.
export function drawFlow(place, samples) {
  const width = place.clientWidth;
  if (!width || samples.length < 2) {
    place.replaceChildren(make("p", { class: "empty" }, "Measuring …"));
    return;
  }
  const speed = curve(width, 130, samples, [["in", "line-in"], ["done", "line-done"]], "events/s");
  const lag = curve(width, 100, samples, [["lag", "line-lag"]], "events on their way");
  const key = make(
    "p",
    { class: "legend" },
    make("span", {}, make("i", { class: "key line-in" }), "in"),
    make("span", {}, make("i", { class: "key line-done" }), "done"),
    make("span", {}, make("i", { class: "key line-lag" }), "on their way"),
  );
  place.replaceChildren(speed, lag, flowAxis(samples, width), key);
}

function flowAxis(samples, width) {
  const first = samples[0].at_ms;
  const span = Math.max(1, samples[samples.length - 1].at_ms - first);
  const every = spacing(span, width, atExactly(first), [5, 10, 15, 30, 60, 120, 300, 600].map((s) => s * 1000));
  const drawn = svg("svg", { width, height: 18, class: "flow-axis", "aria-hidden": "true" });
  for (let t = Math.ceil(first / every) * every; t <= first + span; t += every) {
    const x = ((t - first) / span) * width;
    drawn.append(svg("line", { class: "tick", x1: x, x2: x, y1: 0, y2: 4 }), tickText(x, width, atExactly(t)));
  }
  return drawn;
}

const CUT_FROM = 4;

// The top of a scale. One short peak, such as a history that is worked off, must not flatten all the
// rest: what is far above nine tenths of all values is cut off.
export function scaleTop(values) {
  const sorted = [...values].sort((one, other) => one - other);
  const highest = Math.max(1, sorted[sorted.length - 1]);
  const usual = sorted[Math.floor((sorted.length - 1) * 0.9)];
  const cut = usual > 0 && highest > CUT_FROM * usual;
  return { top: nice(cut ? 1.25 * usual : highest), highest, cut };
}

function curve(width, height, samples, lines, unit) {
  const first = samples[0].at_ms;
  const last = samples[samples.length - 1].at_ms;
  const { top, highest, cut } = scaleTop(samples.flatMap((s) => lines.map(([name]) => s[name])));
  const x = (t) => ((t - first) / Math.max(1, last - first)) * width;
  const y = (v) => height - 4 - (Math.min(v, top) / top) * (height - 24);
  const newest = samples[samples.length - 1];
  const peak = `${highest.toLocaleString("en", { maximumFractionDigits: 0 })} ${unit}`;
  const words = [...lines.map(([name]) => `${name} ${Math.round(newest[name])}`), ...(cut ? [`peak of ${peak} is cut off`] : [])].join(", ");
  const drawn = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${unit}: ${words}` });
  drawn.append(svg("line", { class: "tick", x1: 0, x2: width, y1: y(top), y2: y(top) }), svg("line", { class: "tick", x1: 0, x2: width, y1: y(0), y2: y(0) }));
  const label = svg("text", { x: 0, y: y(top) - 5 });
  label.textContent = `${top.toLocaleString("en")} ${unit}`;
  drawn.append(label);
  if (cut) {
    const note = svg("text", { class: "cut", x: width, y: y(top) - 5, "text-anchor": "end" });
    note.textContent = `peak ${highest.toLocaleString("en", { maximumFractionDigits: 0 })} cut off`;
    drawn.append(note);
  }
  for (const [name, style] of lines) {
    const points = samples.map((s) => `${x(s.at_ms).toFixed(1)},${y(s[name]).toFixed(1)}`).join(" ");
    drawn.append(svg("polyline", { class: style, points }));
  }
  return drawn;
}

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((n) => n * power).find((n) => n >= value);
}
