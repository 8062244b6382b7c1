// The traversal grid: each row moves one latent through its range while all others stay as they are now.

import { make, makeButton, makeChoice } from "./dom.js";
import { imageStrip, show } from "./paint.js";
import { placesOf, withLatent } from "./model.js";
import { QUIET } from "./latents.js";

const MAX_ROWS = 12;
const GAP = 2;

/**
 * @param views which of the decoder's outputs the grid can show, the last one first: {place, shape, title}
 * @param onRow called with a latent's number, pictures and their count when a row has been drawn
 */
export function makeGrid(model, store, background, views, onRow) {
  let view = views.at(-1);
  const { run } = model;
  const active = run.latents.filter((latent, i) => latent.nats >= QUIET || i < 2).length;  // they come first
  let limit = Math.min(MAX_ROWS, active);
  const rows = run.latents.map((latent, i) => makeRow(model, store, () => view, latent, i));
  const body = make("div.grid");
  const more = makeButton(`Show all ${rows.length} latents`, () => {
    limit = rows.length;
    more.hidden = true;
    place();
    refresh();
  });
  more.hidden = rows.length <= limit;
  const place = () => body.replaceChildren(...rows.slice(0, limit).map((row) => row.element));
  place();
  let dirty = new Set(), cursor = 0, started = 0;

  const piece = () => {
    for (let tried = 0; tried < rows.length && !dirty.has(cursor); tried++) cursor = (cursor + 1) % rows.length;
    if (!dirty.has(cursor)) return false;
    dirty.delete(cursor);
    const { values, count } = rows[cursor].draw(store.state.code);
    onRow(cursor, values, count, view.shape);
    if (!dirty.size) performance.measure("grid", { start: started, detail: limit * count });
    return dirty.size > 0;
  };
  const refresh = () => {
    if (!dirty.size) started = performance.now();
    dirty = new Set(rows.slice(0, limit).keys());
    background.ask("grid", piece);
  };
  const choice = views.length > 1 ? makeChoice("show", views.map(({ title }) => title), views.length - 1, (i) => { view = views[i]; refresh(); }).element : null;
  return { element: make("div", {}, choice, body, more), refresh };
}

function makeRow(model, store, view, latent, i) {
  const places = placesOf(latent);
  const canvas = make("canvas", { role: "img", "aria-label": `pictures while ${latent.name} moves through its range` });
  const choose = (event) => {
    const share = event.offsetX / canvas.clientWidth;
    const value = places[Math.max(0, Math.min(places.length - 1, Math.floor(share * places.length)))];
    store.set({ code: withLatent(store.state.code, latent, value) }, `grid ${i}`);
  };
  canvas.addEventListener("click", choose);
  const element = make("div.row", { style: { "--tiles": String(places.length) } }, make("b.name", { text: latent.name }), canvas);
  const draw = (code) => {
    const codes = new Float32Array(places.length * model.width);
    places.forEach((value, k) => codes.set(withLatent(code, latent, value), k * model.width));
    const { place, shape } = view();
    const values = model.decode(codes, places.length)[place];
    show(canvas, imageStrip(values, places.length, shape, GAP));
    return { values, count: places.length };
  };
  return { element, draw };
}
