// Draws from the prior, each to be taken with a click.

import { make, makeButton } from "./dom.js";
import { makeView } from "./paint.js";
import { sizeOfShape } from "./model.js";

const COUNT = 12;

/** A standard normal number, by Box and Muller. */
function drawNormal() {
  return Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
}

/** A code drawn from the prior: drawn here if it is standard, else one of those that came with the page. */
export function drawCode(model) {
  const { run, width } = model;
  if (!run.prior) return Array.from({ length: width }, drawNormal);
  const codes = model.array(run.prior), row = Math.floor(Math.random() * (codes.length / width));
  return [...codes.subarray(row * width, (row + 1) * width)];
}

export function makeDraws(model, store, background, view) {
  let codes = [];
  const tiles = Array.from({ length: COUNT }, (_, i) => {
    const made = makeView(view.modality, `draw ${i + 1} from the prior`);
    const button = makeButton("", () => store.set({ code: codes[i], source: null }), { class: "thumb", "aria-label": `take draw ${i + 1}` });
    button.append(made.element);
    return { button, paint: made.paint };
  });
  const draw = () => background.ask("draws", () => {
    codes = tiles.map(() => drawCode(model));
    const values = model.decode(codes.flat(), COUNT)[view.place], size = sizeOfShape(view.shape);
    tiles.forEach((tile, i) => tile.paint(values.slice(i * size, (i + 1) * size)));
    return false;
  });
  draw();
  return make("div.draws", {}, make("div.thumbs", {}, ...tiles.map(({ button }) => button)), makeButton("Draw again", draw));
}
