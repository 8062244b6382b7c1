// A page of several runs: a table to sort and filter, charts, and the explorer of the run that is chosen.

import { boxChart, scatterChart } from "./charts.js";
import { make, makeChoice, makeSection } from "./dom.js";

const MAX_SCORES = 8;
const FIRST_SCORES = ["mig/exact", "mig/histogram-mean", "elbo/closed-form", "elbo/sampled", "tc/exact"];

/**
 * @param data the page's data
 * @param {(member: number) => void} open shows the explorer of a member
 * @returns element, and `mark(member)` for the one that is shown
 */
export function makeSweep(data, open) {
  const members = data.members.map((member, place) => ({
    place, name: member.name, settings: member.settings,
    scores: Object.fromEntries(member.run.scores.map(({ name, value }) => [name, value])),
  }));
  const keys = Object.keys(members[0].settings);
  const names = [...new Set(members.flatMap((member) => Object.keys(member.scores)))];
  const scores = [...FIRST_SCORES.filter((name) => names.includes(name)), ...names.filter((name) => !FIRST_SCORES.includes(name))].slice(0, MAX_SCORES);
  const choose = (member) => open(member.place);
  const table = makeTable(members, keys, scores, choose);
  const charts = scores.length ? makeCharts(members, keys, scores, choose) : null;
  const element = makeSection("runs", `${members.length} runs`, "Sort by a column, filter by any word, and click a run to explore it below.", table.element, charts);
  return { element, mark: table.mark };
}

function makeTable(members, keys, scores, choose) {
  let sorted = { column: null, down: true }, shown = -1;
  const columns = [
    ...keys.map((key) => ({ title: key, value: (member) => member.settings[key] })),
    ...scores.map((name) => ({ title: name, value: (member) => member.scores[name] ?? null, number: true })),
  ];
  const body = make("tbody"), filter = make("input", { type: "search", placeholder: "filter, as beta=4", "aria-label": "filter the runs", on: { input: () => fill() } });
  const heads = columns.map((column) => make("th", { scope: "col", "aria-sort": "none" }, make("button", {
    type: "button", text: column.title,
    on: { click: () => { sorted = { column, down: sorted.column === column ? !sorted.down : Boolean(column.number) }; fill(); } },
  })));
  const compare = (a, b) => {
    const [x, y] = [a, b].map(sorted.column.value);
    if (x === null || y === null) return (x === null) - (y === null);
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return sorted.down ? -order : order;
  };
  const text = (value) => (value === null || value === undefined ? "–" : typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value));
  const fill = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (member) => words.every((word) => [member.name, ...Object.entries(member.settings).map(([key, value]) => `${key}=${value}`)].some((cell) => cell.toLowerCase().includes(word)));
    const found = members.filter(matches);
    if (sorted.column) found.sort(compare);
    body.replaceChildren(...found.map((member) => make("tr", { class: member.place === shown ? "shown" : null },
      make("th", { scope: "row" }, make("button.link", { type: "button", text: member.name, "aria-label": `explore ${member.name}`, on: { click: () => choose(member) } })),
      ...columns.map((column) => make("td", { text: text(column.value(member)) })))));
    heads.forEach((head, i) => head.setAttribute("aria-sort", columns[i] !== sorted.column ? "none" : sorted.down ? "descending" : "ascending"));
  };
  fill();
  const table = make("table.runs", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col", text: "run" }), ...heads)), body);
  return { element: make("div", {}, filter, make("div.scroll", {}, table)), mark: (place) => { shown = place; fill(); } };
}

function makeCharts(members, keys, scores, choose) {
  const settings = keys.length ? keys : ["run"];
  const chosen = { setting: Math.max(0, settings.findIndex((key) => key !== "seed")), score: 0, across: Math.min(1, scores.length - 1) };
  const boxes = make("div"), scatter = make("div");
  const refresh = () => {
    boxes.replaceChildren(boxChart(members, settings[chosen.setting], scores[chosen.score], choose));
    scatter.replaceChildren(scatterChart(members, scores[chosen.across], scores[chosen.score], choose));
  };
  const pick = (label, options, key) => makeChoice(label, options, chosen[key], (i) => { chosen[key] = i; refresh(); }).element;
  refresh();
  return make("div", {}, make("div.choices", {}, pick("score", scores, "score"), pick("over", settings, "setting"), pick("against", scores, "across")), make("div.charts", {}, boxes, scatter));
}
