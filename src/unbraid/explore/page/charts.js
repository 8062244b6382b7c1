// Small charts of scores over runs, as SVG: boxes over a setting, and one score against another.

const SPACE = "http://www.w3.org/2000/svg";
const WIDTH = 460, HEIGHT = 300, LEFT = 76, RIGHT = 30, TOP = 14, BOTTOM = 44;

function drawShape(kind, attributes, text) {
  const element = document.createElementNS(SPACE, kind);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function reachOf(values) {
  const low = Math.min(...values), high = Math.max(...values), room = 0.06 * (high - low) || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

const shortNumber = (value) => (Number.isInteger(value) ? String(value) : Number(value.toPrecision(3)).toString());

function startChart(label, up, across) {
  const chart = drawShape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": label });
  chart.append(drawShape("path", { d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}`, class: "axis" }));
  chart.append(drawShape("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, class: "label" }, across));
  chart.append(drawShape("text", { x: 14, y: (HEIGHT - BOTTOM) / 2, class: "label", transform: `rotate(-90 14 ${(HEIGHT - BOTTOM) / 2})` }, up));
  return chart;
}

/** Round numbers within a range, about `count` of them, as [value, text]. */
export function chooseTicks([low, high], count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const decimals = Math.max(0, -Math.floor(Math.log10(step * 1.001)));
  const write = (value) => (decimals > 5 ? Number(value.toPrecision(3)).toExponential() : value.toFixed(decimals));
  const first = Math.ceil(low / step), last = Math.floor(high / step);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step || 0).map((value) => [value, write(value)]);
}

function drawUpTicks(chart, reach, toY) {
  for (const [value, text] of chooseTicks(reach, 4)) chart.append(drawShape("text", { x: LEFT - 6, y: toY(value) + 4, class: "tick end" }, text));
}

/** A point that opens a member: with the pointer or the keyboard. */
function addPoint(chart, x, y, member, choose) {
  const point = drawShape("circle", { cx: x, cy: y, r: 5, tabindex: 0, role: "button", "aria-label": `explore ${member.name}` });
  point.append(drawShape("title", {}, `${member.name} ${Object.entries(member.settings).map(([key, value]) => `${key} ${value}`).join(", ")}`));
  point.addEventListener("click", () => choose(member));
  point.addEventListener("keydown", (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), choose(member)));
  chart.append(point);
}

/** Values of a score over the values of a setting: quartiles as a box, every run as a point. */
export function boxChart(members, setting, score, choose) {
  const known = members.filter((member) => Number.isFinite(member.scores[score]));
  const groups = [...new Set(known.map((member) => member.settings[setting]))].sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b))));
  const chart = startChart(`${score} over ${setting}`, score, setting);
  if (!known.length) return chart;
  const reach = reachOf(known.map((member) => member.scores[score]));
  const toY = (value) => HEIGHT - BOTTOM - ((value - reach[0]) / (reach[1] - reach[0])) * (HEIGHT - TOP - BOTTOM);
  drawUpTicks(chart, reach, toY);
  const step = (WIDTH - LEFT - RIGHT) / groups.length;
  groups.forEach((group, g) => {
    const own = known.filter((member) => member.settings[setting] === group), x = LEFT + (g + 0.5) * step;
    const sorted = own.map((member) => member.scores[score]).sort((a, b) => a - b);
    const quantile = (q) => { const at = q * (sorted.length - 1), low = Math.floor(at); return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]); };
    const wide = Math.min(44, 0.5 * step);
    chart.append(drawShape("rect", { x: x - wide / 2, y: toY(quantile(0.75)), width: wide, height: Math.max(1, toY(quantile(0.25)) - toY(quantile(0.75))), class: "box" }));
    chart.append(drawShape("path", { d: `M${x - wide / 2} ${toY(quantile(0.5))}h${wide}`, class: "median" }));
    own.forEach((member, i) => addPoint(chart, x + (((i * 7919) % 11) - 5) * Math.min(2.2, step / 40), toY(member.scores[score]), member, choose));
    chart.append(drawShape("text", { x, y: HEIGHT - BOTTOM + 16, class: "tick" }, typeof group === "number" ? shortNumber(group) : String(group).slice(0, 14)));
  });
  return chart;
}

/** One score against another. */
export function scatterChart(members, across, up, choose) {
  const known = members.filter((member) => Number.isFinite(member.scores[across]) && Number.isFinite(member.scores[up]));
  const chart = startChart(`${up} against ${across}`, up, across);
  if (!known.length) return chart;
  const x = reachOf(known.map((member) => member.scores[across])), y = reachOf(known.map((member) => member.scores[up]));
  const toX = (value) => LEFT + ((value - x[0]) / (x[1] - x[0])) * (WIDTH - LEFT - RIGHT);
  const toY = (value) => HEIGHT - BOTTOM - ((value - y[0]) / (y[1] - y[0])) * (HEIGHT - TOP - BOTTOM);
  drawUpTicks(chart, y, toY);
  for (const [value, text] of chooseTicks(x, 5)) chart.append(drawShape("text", { x: toX(value), y: HEIGHT - BOTTOM + 16, class: "tick" }, text));
  for (const member of known) addPoint(chart, toX(member.scores[across]), toY(member.scores[up]), member, choose);
  return chart;
}
