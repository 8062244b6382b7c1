// The page of one run: everything on it, and what follows what.

import { Background } from "./background.js";
import { make, makeButton, makeChoice, makeSection } from "./dom.js";
import { drawCode, makeDraws } from "./draws.js";
import { makeGrid } from "./grid.js";
import { makeLatents } from "./latents.js";
import { readLink, writeLink } from "./link.js";
import { makeMap } from "./map.js";
import { makeMix } from "./mix.js";
import { makeView } from "./paint.js";
import { saveAnimation, saveCodes, savePicture } from "./save.js";
import { makeSource } from "./source.js";
import { Store } from "./store.js";

/**
 * Show a run.
 * @param {HTMLElement} root where
 * @param model the model
 * @param rows rows of its data
 * @param {(sentence: string) => void} say tells the reader something
 * @param {object} extra further state that links carry
 */
export function showExplorer(root, model, rows, say, extra = {}) {
  const { run } = model;
  const start = model.codeOfRow(0);
  const store = new Store({ ...extra, code: start, source: { row: 0, present: rows.presence(0) }, a: 0, b: Math.min(1, rows.count - 1) });
  const background = new Background();
  const modalityOf = (view) => run.modalities.find(({ name }) => name === view.modality);
  const views = run.views.map((view, place) => ({ ...view, place, modality: modalityOf(view) }));
  const pictured = views.findLast((view) => view.modality.kind === "image");
  const main = pictured ?? views.at(-1);

  const pictures = views.map((view) => makeView(view.modality, view.title));
  const latents = makeLatents(run, store, pictured);
  const source = makeSource(model, rows, store, say);
  const images = views.filter((view) => view.modality.kind === "image");
  const grid = pictured ? makeGrid(model, store, background, images, latents.paintEnds) : null;
  const map = makeMap(model, rows, store);
  const mix = makeMix(model, rows, store, background, main);
  const speed = make("span.speed");

  const draw = (state) => {
    const begin = performance.now();
    const values = model.decode(state.code);
    pictures.forEach((picture, i) => picture.paint(values[i]));
    const took = performance.now() - begin;
    performance.measure("picture", { start: begin });
    speed.textContent = `drawn in ${took < 10 ? took.toFixed(1) : Math.round(took)} ms, here in your browser`;
  };
  const update = (state, before) => {
    if (state.code !== before?.code) {
      draw(state);
      latents.update(state);
      grid?.refresh();
      background.ask("map", () => map.update(state) ?? false);
    }
    source.update(state);
    mix.update(state);
  };
  store.listen(update);

  const thing = pictured ? "picture" : "row";
  const own = pictured && model.encoder ? "Choose one of the data, or drop or paste your own" : "Choose one of the data";
  const startWords = model.encoder ? `${own}: the model encodes it and draws what it understood.` : `${own}.`;
  const controlWords = ["Move one and watch.", pictured ? "The small pictures show its two ends." : "", run.factors.length ? "The chips say which factor it knows." : ""].join(" ");
  const hero = make("div.hero", {},
    make("div.stage", {},
      make("div.pictures", {}, ...pictures.map((picture, i) => make("figure", {}, picture.element, views.length > 1 ? make("figcaption", { text: views[i].title }) : null))),
      makeToolbar(model, store, say, main, pictured),
      speed, source.given),
    make("div.controls", {}, make("h2", { text: "Latents" }), make("p.soft", { text: controlWords }), latents.element));
  root.replaceChildren(
    hero,
    makeSection("start", `Start from a ${thing}`, startWords, source.element),
    ...(grid ? [makeSection("traversals", "Traversals", "Each row moves one latent through its range; all others stay as they are above. Click a picture to go there.", grid.element)] : []),
    makeSection("map", "Map of the codes", `Each point is a ${thing} of the data. Hover to see it, click to take it, click between points to draw what would lie there.`, map.element),
    makeSection("between", `Between two ${thing}s`, "The way from A to B in the code, and what comes out when they swap parts of their codes.", mix.element),
    makeSection("draws", "Draws", `${pictured ? "Pictures" : "Rows"} of codes drawn from the prior.`, makeDraws(model, store, background, main)),
    makeAbout(run),
  );
  const listening = new AbortController();
  listenToKeys(store, listening.signal);
  listenToFiles(source.takeFile, listening.signal);
  openLink(store, model, rows, say, listening.signal);
  update(store.state, null);
  return { store, close: () => listening.abort() };
}

function makeToolbar(model, store, say, view, pictured) {
  const { run } = model;
  const undo = makeButton("Undo", () => store.undo(), { title: "Ctrl+Z" });
  const redo = makeButton("Redo", () => store.redo(), { title: "Ctrl+Shift+Z" });
  const follow = () => {
    undo.disabled = !store.past.length;
    redo.disabled = !store.future.length;
  };
  store.listen(follow);
  follow();
  const copy = async () => {
    const address = location.href.replace(/#.*$/, "") + writeLink(store.state);
    try {
      history.replaceState(null, "", writeLink(store.state));
      await navigator.clipboard.writeText(address);
      say("A link to this code is in your clipboard.");
    } catch {
      say("A link to this code is in the address bar.");
    }
  };
  const chosen = { latent: 0 };
  const animated = makeChoice("", run.latents.map(({ name }) => name), 0, (i) => (chosen.latent = i));
  animated.select.setAttribute("aria-label", "latent that the GIF moves");
  const save = make("details.menu", {}, make("summary", { text: "Save" }), make("div", {},
    pictured ? makeButton("Picture (PNG)", () => savePicture(model, store.state.code, pictured)) : null,
    pictured ? make("span", {}, makeButton("Traversal (GIF) of", () => saveAnimation(model, store.state.code, pictured, run.latents[chosen.latent])), animated.element) : null,
    makeButton("Codes (CSV)", () => saveCodes(model, store.state.code))));
  return make("div.toolbar", { role: "toolbar", "aria-label": "picture" }, undo, redo,
    makeButton("Reset", () => store.set({ code: store.initial.code, source: store.initial.source })),
    makeButton("Random", () => store.set({ code: drawCode(model), source: null }), { title: "draw from the prior (R)" }),
    makeButton("Copy link", copy), save);
}

const LEVELS = { chance: "value of a code that knows nothing of the factors", ceiling: "value of a perfect code" };

function makeAbout(run) {
  const levels = ["chance", "ceiling"].filter((level) => run.scores.some((score) => score[level] !== null));
  const heads = ["score", "value", "95% interval", ...levels].map((text) => make("th", { scope: "col", text, title: LEVELS[text] ?? null }));
  const body = make("tbody", {}, ...run.scores.map((score) => makeScore(score, levels)));
  const scores = make("div.scroll", {}, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body));
  return makeSection("about", "About this model", `${run.method}, trained on ${run.data}; run ${run.id}.`,
    run.scores.length ? make("details", {}, make("summary", { text: `${run.scores.length} scores` }), scores) : null,
    make("details", {}, make("summary", { text: "Settings" }), make("pre", { text: run.settings })));
}

function makeScore(score, levels) {
  const { name, value, interval } = score;
  const known = levels.filter((level) => score[level] !== null);
  return make("tr", { title: known.map((level) => `${level}: ${score[level]}`).join(", ") || null },
    make("th", { scope: "row", text: name }),
    make("td", { text: value === null ? "–" : String(value) }),
    make("td.soft", { text: interval && interval[0] !== interval[1] ? `${interval[0]} to ${interval[1]}` : "" }),
    ...levels.map((level) => make("td.soft", { text: score[level] === null ? "" : String(score[level]) })));
}

function listenToKeys(store, signal) {
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z" || event.target.closest("input[type=text]")) return;
    event.preventDefault();
    if (event.shiftKey) store.redo();
    else store.undo();
  }, { signal });
}

function listenToFiles(takeFile, signal) {
  const first = (files) => [...(files ?? [])][0];
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  }, { signal });
  document.addEventListener("dragleave", (event) => event.relatedTarget || document.body.classList.remove("dropping"), { signal });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    const file = first(event.dataTransfer?.files);
    if (file) takeFile(file);
  }, { signal });
  document.addEventListener("paste", (event) => {
    const file = first(event.clipboardData?.files);
    if (file) takeFile(file);
  }, { signal });
}

function openLink(store, model, rows, say, signal) {
  const open = () => {
    const { change, problem } = readLink(location.hash, model.width, rows.count);
    if (problem) say(problem);
    if (change) store.set({ ...change, source: null });
  };
  open();
  addEventListener("hashchange", open, { signal });
}
