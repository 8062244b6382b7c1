// A map of the data's codes: points to hover, click and walk through with the arrow keys; a click elsewhere decodes there.

import { formatNumber, make, makeChoice } from "./dom.js";
import { axesOf } from "./projection.js";
import { describeRow } from "./source.js";
import { imageStrip, show } from "./paint.js";

const HUES = ["#e07a3f", "#2f9e8f", "#4c7bd9", "#b565c4", "#c9a227", "#7a8691", "#d1495b", "#5a9e4b", "#3aa6c1", "#a0785a"];
const MARGIN = 34;
const REACH = 12;

export function makeMap(model, rows, store) {
  const { run } = model;
  const canvas = make("canvas", { role: "application", tabindex: 0, "aria-label": "map of codes; arrow keys walk through the data, Enter takes a picture" });
  const tip = make("div.tip", { hidden: true }), picture = make("canvas"), words = make("span");
  tip.append(picture, words);
  const state = { x: run.latents.length > 1 ? 0 : -1, y: 1, colour: run.factors.length ? 0 : -1, hover: -1 };
  let axes, points, frame;

  const place = () => {
    axes = axesOf(model, state.x, state.y);
    points = Array.from({ length: rows.count }, (_, row) => axes.project(model.codeOfRow(row)));
    const reach = (k) => {
      const values = points.map((point) => point[k]);
      const low = Math.min(...values), high = Math.max(...values), room = 0.06 * (high - low) || 1;
      return [low - room, high + room];
    };
    frame = [reach(0), reach(1)];
    draw();
  };
  const toScreen = (point) => {
    const { clientWidth: w, clientHeight: h } = canvas;
    const share = point.map((value, k) => (value - frame[k][0]) / (frame[k][1] - frame[k][0]));
    return [MARGIN + share[0] * (w - MARGIN - 10), h - MARGIN - share[1] * (h - MARGIN - 10)];
  };
  const fromScreen = (x, y) => {
    const { clientWidth: w, clientHeight: h } = canvas;
    const share = [(x - MARGIN) / (w - MARGIN - 10), (h - MARGIN - y) / (h - MARGIN - 10)];
    return share.map((s, k) => frame[k][0] + s * (frame[k][1] - frame[k][0]));
  };
  const draw = () => {
    if (!canvas.clientWidth) return;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    const context = canvas.getContext("2d"), style = getComputedStyle(canvas);
    context.scale(ratio, ratio);
    drawAxes(context, canvas, axes.names, frame, style);
    points.forEach((point, row) => drawPoint(context, toScreen(point), colourOf(model, state.colour, row, style), row === state.hover));
    drawHere(context, toScreen(axes.project(store.state.code)), style);
  };
  const point = (row) => {
    state.hover = row;
    tip.hidden = row < 0;
    if (row >= 0) showTip(model, rows, row, tip, picture, words, toScreen(points[row]), canvas);
    draw();
  };
  const nearest = (x, y) => {
    let best = -1, least = REACH ** 2;
    points.forEach((each, row) => {
      const [px, py] = toScreen(each), distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < least) [best, least] = [row, distance];
    });
    return best;
  };
  const takeRow = (row) => store.set({ code: model.codeOfRow(row), source: { row, present: rows.presence(row) } });
  canvas.addEventListener("pointermove", (event) => point(nearest(event.offsetX, event.offsetY)));
  canvas.addEventListener("pointerleave", () => point(-1));
  canvas.addEventListener("click", (event) => {
    const row = nearest(event.offsetX, event.offsetY);
    if (row >= 0) takeRow(row);
    else store.set({ code: axes.place(store.state.code, fromScreen(event.offsetX, event.offsetY)), source: null });
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step) point((Math.max(state.hover, step > 0 ? -1 : 0) + step + rows.count) % rows.count);
    else if (event.key === "Enter" && state.hover >= 0) takeRow(state.hover);
    else return;
    event.preventDefault();
  });
  new ResizeObserver(draw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  const names = run.latents.map(({ name }) => name);
  const across = makeChoice("across", [...names, "PCA"], state.x < 0 ? names.length : state.x, (i) => { state.x = i === names.length ? -1 : i; up.select.disabled = state.x < 0; place(); });
  const up = makeChoice("up", names, state.y, (i) => { state.y = i; place(); });
  const legend = make("div.legend");
  const colours = run.factors.length ? makeChoice("colour", run.factors.map(({ name }) => name), state.colour, (i) => { state.colour = i; fillLegend(legend, run.factors[i]); draw(); }).element : null;
  if (run.factors.length) fillLegend(legend, run.factors[state.colour]);
  const choices = make("div.choices", {}, across.element, names.length > 1 ? up.element : null, colours, legend);
  place();
  return { element: make("div.map", {}, choices, make("div.board", {}, canvas, tip)), update: draw };
}

/** The colours of a factor's values: a word for each, or the way from the first to the last. */
function fillLegend(legend, { size, values, words }) {
  const named = words && size <= HUES.length;
  const shown = named ? values.map((text, i) => [text, HUES[i]]) : Array.from({ length: 5 }, (_, i) => [i === 0 ? String(values?.[0] ?? 0) : i === 4 ? String(values?.[size - 1] ?? size - 1) : "", shade(i / 4)]);
  legend.replaceChildren(...shown.map(([text, colour]) => make("span", { style: { "--colour": colour }, text })));
}

function colourOf(model, factor, row, style) {
  if (factor < 0) return style.getPropertyValue("--accent");
  const { size, words } = model.run.factors[factor], value = model.factors[row * model.run.factors.length + factor];
  if (value < 0) return style.getPropertyValue("--line");
  if (words && size <= HUES.length) return HUES[value];
  return shade(size > 1 ? value / (size - 1) : 0);
}

function shade(share) {
  return `hsl(${Math.round(250 - 215 * share)} 62% ${Math.round(52 + 6 * Math.sin(share * Math.PI))}%)`;
}

function drawAxes(context, canvas, names, frame, style) {
  const { clientWidth: w, clientHeight: h } = canvas;
  context.strokeStyle = style.getPropertyValue("--line");
  context.fillStyle = style.getPropertyValue("--soft");
  context.font = "12px system-ui, sans-serif";
  context.beginPath();
  context.moveTo(MARGIN, 10);
  context.lineTo(MARGIN, h - MARGIN);
  context.lineTo(w - 10, h - MARGIN);
  context.stroke();
  context.textAlign = "center";
  context.fillText(names[0], (w + MARGIN) / 2, h - 8);
  context.textAlign = "left";
  context.fillText(formatNumber(frame[0][0], 1), MARGIN, h - 20);
  context.textAlign = "right";
  context.fillText(formatNumber(frame[0][1], 1), w - 10, h - 20);
  context.save();
  context.translate(14, h / 2 - MARGIN / 2);
  context.rotate(-Math.PI / 2);
  context.textAlign = "center";
  context.fillText(names[1], 0, 0);
  context.restore();
  context.textAlign = "right";
  context.fillText(formatNumber(frame[1][0], 1), MARGIN - 4, h - MARGIN);
  context.fillText(formatNumber(frame[1][1], 1), MARGIN - 4, 20);
}

function drawPoint(context, [x, y], colour, chosen) {
  context.beginPath();
  context.arc(x, y, chosen ? 7 : 4, 0, 2 * Math.PI);
  context.fillStyle = colour;
  context.globalAlpha = chosen ? 1 : 0.8;
  context.fill();
  context.globalAlpha = 1;
}

function drawHere(context, [x, y], style) {
  context.strokeStyle = style.getPropertyValue("--ink");
  context.lineWidth = 2;
  context.beginPath();
  context.arc(x, y, 8, 0, 2 * Math.PI);
  for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
    context.moveTo(x + 6 * dx, y + 6 * dy);
    context.lineTo(x + 13 * dx, y + 13 * dy);
  }
  context.stroke();
  context.lineWidth = 1;
}

function showTip(model, rows, row, tip, picture, words, [x, y], canvas) {
  const modality = model.run.modalities.findIndex(({ kind }, m) => kind === "image" && rows.presence(row)[m]);
  picture.hidden = modality < 0;
  if (modality >= 0) show(picture, imageStrip(rows.observation(modality, row), 1, model.run.modalities[modality].shape));
  words.textContent = describeRow(model, row).slice(2) || `row ${rows.place(row)}`;
  const left = x > canvas.clientWidth / 2;
  tip.style.setProperty("left", `${x + (left ? -12 : 12)}px`);
  tip.style.setProperty("top", `${Math.min(y, canvas.clientHeight - 130)}px`);
  tip.classList.toggle("leftwards", left);
}
