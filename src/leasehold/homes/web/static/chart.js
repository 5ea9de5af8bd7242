// Charts as SVG, made here: one lane per kind of sensor, drawn at the width that there is.

import { icon, svg } from "./icons.js";
import { at, atShort, make } from "./page.js";

export const KINDS = {
  motion: { name: "Motion", noun: "movements" },
  door: { name: "Door", noun: "openings" },
  window: { name: "Window", noun: "openings" },
  glass: { name: "Glass", noun: "breaks" },
  co: { name: "CO", noun: "ppm" },
};

export const CO_LIMIT = 50;
const LANE = 40;
const CO_LANE = 64;

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
  const name = make("span", { class: "lane-name" }, icon(kind), KINDS[kind].name);
  const row = make("div", { class: `lane ${kind}` }, name, canvas);
  const height = kind === "co" ? CO_LANE : LANE;
  return { row, draw: (width) => canvas.append(bars(kind, levels, series, width, height)) };
}

function bars(kind, levels, series, width, height) {
  const top = kind === "co" ? Math.max(CO_LIMIT * 1.2, ...levels.map((v) => v ?? 0)) : Math.max(1, ...levels.map((v) => v ?? 0));
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
    const alarming = kind === "co" ? level >= CO_LIMIT : level > 0;
    const bar = svg("rect", { class: alarming || (kind === "co" && level > 0) ? "on" : "off", x, y: base - tall + 1, width: wide, height: tall, rx: Math.min(2, wide / 3) });
    if (kind === "co" && alarming) bar.classList.add("over");
    const what = kind === "co" ? `${level} ppm` : level ? `${level} ${level === 1 ? KINDS[kind].noun.slice(0, -1) : KINDS[kind].noun}` : "all quiet";
    bar.append(svg("title", {}, `${at(series.start_ms + n * series.step_s * 1000)}: ${what}`));
    drawn.append(bar);
  });
  if (kind === "co") {
    const y = base - (CO_LIMIT / top) * (base - 4);
    drawn.append(svg("line", { class: "limit", x1: 0, x2: width, y1: y, y2: y }));
    const words = svg("text", { class: "limit-text", x: width, y: y - 4, "text-anchor": "end" });
    words.textContent = `danger from ${CO_LIMIT} ppm`;
    drawn.append(words);
  }
  return drawn;
}

function inWords(kind, levels, series) {
  const known = levels.filter((v) => v !== null);
  const span = series.step_s === 60 ? "the last hour" : "the last 24 hours";
  if (!known.length) return `${KINDS[kind].name}: no reading in ${span}`;
  if (kind === "co") return `Carbon monoxide: at most ${Math.max(...known)} ppm in ${span}`;
  const total = known.reduce((sum, v) => sum + v, 0);
  if (!total) return `${KINDS[kind].name}: nothing noticed in ${span}`;
  let last = levels.length - 1;
  while (!levels[last]) last -= 1;
  return `${KINDS[kind].name}: ${total} ${KINDS[kind].noun} in ${span}, last at ${at(series.start_ms + last * series.step_s * 1000)}`;
}

function timeAxis(series, width) {
  const ends = series.start_ms + series.levels.motion.length * series.step_s * 1000;
  const every = (series.step_s === 60 ? 15 : width < 420 ? 360 : 180) * 60000;
  const drawn = svg("svg", { width, height: 18, "aria-hidden": "true" });
  const offset = new Date(series.start_ms).getTimezoneOffset() * 60000;
  for (let t = Math.ceil((series.start_ms - offset) / every) * every + offset; t < ends; t += every) {
    const x = ((t - series.start_ms) / (ends - series.start_ms)) * width;
    drawn.append(svg("line", { class: "tick", x1: x, x2: x, y1: 0, y2: 4 }));
    const words = svg("text", { x: Math.min(Math.max(x, 17), width - 17), y: 15, "text-anchor": "middle" });
    words.textContent = atShort(t);
    drawn.append(words);
  }
  return drawn;
}

export function fillTable(table, series, kinds) {
  const head = make("tr", {}, make("th", { scope: "col" }, "From"), ...kinds.map((kind) => make("th", { scope: "col" }, KINDS[kind].name)));
  const rows = series.levels.motion.map((_, n) => {
    const cells = kinds.map((kind) => {
      const level = series.levels[kind][n];
      return make("td", {}, level === null ? "–" : kind === "co" ? `${level} ppm` : String(level));
    });
    return make("tr", {}, make("th", { scope: "row" }, at(series.start_ms + n * series.step_s * 1000)), ...cells);
  });
  table.replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows.reverse()));
}

// Two lines over time, for operators: what comes in and what is done; below, the lag.
export function drawFlow(place, samples) {
  const width = place.clientWidth;
  if (!width || samples.length < 2) {
    place.replaceChildren(make("p", { class: "empty" }, "Measuring …"));
    return;
  }
  const speed = curve(width, 120, samples, [["in", "line-in"], ["done", "line-done"]], "events/s");
  const lag = curve(width, 80, samples, [["lag", "line-lag"]], "events behind");
  const key = make(
    "p",
    { class: "legend" },
    make("span", {}, make("i", { class: "key line-in" }), "in"),
    make("span", {}, make("i", { class: "key line-done" }), "done"),
    make("span", {}, make("i", { class: "key line-lag" }), "behind"),
  );
  place.replaceChildren(speed, lag, key);
}

function curve(width, height, samples, lines, unit) {
  const first = samples[0].at_ms;
  const last = samples[samples.length - 1].at_ms;
  const top = nice(Math.max(1, ...samples.flatMap((s) => lines.map(([name]) => s[name]))));
  const x = (t) => ((t - first) / Math.max(1, last - first)) * width;
  const y = (v) => height - 4 - (v / top) * (height - 24);
  const newest = samples[samples.length - 1];
  const words = lines.map(([name]) => `${name} ${Math.round(newest[name])}`).join(", ");
  const drawn = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${unit}: ${words}` });
  drawn.append(svg("line", { class: "tick", x1: 0, x2: width, y1: y(top), y2: y(top) }), svg("line", { class: "tick", x1: 0, x2: width, y1: y(0), y2: y(0) }));
  const label = svg("text", { x: 0, y: y(top) - 5 });
  label.textContent = `${top.toLocaleString("en")} ${unit}`;
  drawn.append(label);
  for (const [name, style] of lines) {
    const points = samples.map((s) => `${x(s.at_ms).toFixed(1)},${y(s[name]).toFixed(1)}`).join(" ");
    drawn.append(svg("polyline", { class: style, points }));
  }
  return drawn;
}

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value);
}
