// Our own icons: paths in a box of 24, drawn with the colour of the text.

const PATHS = {
  motion: ["M9.5 4.5a1.8 1.8 0 1 0 3.6 0a1.8 1.8 0 1 0-3.6 0", "M12.5 9 9.8 13l3 2.5-.8 5.5", "M9.8 13 6.5 20", "M7 11.5 9 8.8l3.5.2 2.2 2.8 2.8.6", "M18.5 6.5c.9.8.9 2.2 0 3", "M20.8 4.5c2 2 2 5 0 7"],
  door: ["M5 21V4.5A1.5 1.5 0 0 1 6.5 3h11A1.5 1.5 0 0 1 19 4.5V21", "M3 21h18", "M15.2 12.2v.6"],
  "door-open": ["M3 21h18", "M5 21V4.5A1.5 1.5 0 0 1 6.5 3H14", "M14 3l5 2.5V21h-5z", "M16.2 12.5v.8"],
  window: ["M5 4.5A1.5 1.5 0 0 1 6.5 3h11A1.5 1.5 0 0 1 19 4.5v15H5z", "M12 3v16.5", "M5 11h14", "M3.5 21.5h17"],
  "window-open": ["M5 19.5v-15A1.5 1.5 0 0 1 6.5 3h11A1.5 1.5 0 0 1 19 4.5v15", "M3.5 21.5h17", "M5 4l5 2.5v12L5 21", "M19 4l-5 2.5v12L19 21"],
  glass: ["M4 4h16v16H4z", "M12 12 4.5 7.5", "M12 12 9.5 4.2", "M12 12l7.8-3.5", "M12 12l6 8", "M12 12l-3.5 7.8"],
  co: ["M10 8.6a4.2 4.2 0 1 0 0 6.8", "M17 7.8a4.2 4.2 0 1 1 0 8.4a4.2 4.2 0 1 1 0-8.4", "M5 20.5c1.2-1 2.3-1 3.5 0s2.3 1 3.5 0 2.3-1 3.5 0 2.3 1 3.5 0"],
  quiet: ["M12 3l7.5 3v5.5c0 4.6-3.1 8-7.5 9.5-4.4-1.5-7.5-4.9-7.5-9.5V6z", "M8.5 12l2.5 2.5 4.5-5"],
  alarm: ["M12 3.5 22 20.5H2z", "M12 10v5", "M12 17.6v.4"],
  silent: ["M4 4l16 16", "M8.5 15.5a5 5 0 0 1 5-1.6", "M5 12a10 10 0 0 1 4-2.4", "M13 9a10 10 0 0 1 6 3", "M2 8.5a15 15 0 0 1 4.5-2.8", "M10.5 4.6A15 15 0 0 1 22 8.5", "M12 19v.3"],
  wait: ["M12 3a9 9 0 1 0 9 9"],
  battery: ["M3 8.5A1.5 1.5 0 0 1 4.5 7h13A1.5 1.5 0 0 1 19 8.5v7a1.5 1.5 0 0 1-1.5 1.5h-13A1.5 1.5 0 0 1 3 15.5z", "M21.5 10.5v3"],
};

const NS = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function icon(name) {
  const drawn = svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true", focusable: "false" });
  for (const d of PATHS[name] ?? PATHS.alarm) drawn.append(svg("path", { d }));
  return drawn;
}
