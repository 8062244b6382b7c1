// Elements of the page. Text from files only ever becomes text: nothing here parses markup.

/**
 * Make an element.
 * @param {string} kind tag, with classes behind dots: "button.quiet"
 * @param {object} [properties] attributes; `on` holds listeners, `text` the text, `style` custom properties
 * @param {...(Node|string|null)} children
 */
export function make(kind, properties = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (key === "text") element.textContent = value;
    else if (key === "style") for (const [name, each] of Object.entries(value)) element.style.setProperty(name, each);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A button with a text; `title` explains it. */
export function makeButton(text, run, properties = {}) {
  return make("button", { type: "button", text, on: { click: run }, ...properties });
}

/** A labelled choice of a few texts; calls `choose` with the number of the chosen one. */
export function makeChoice(label, options, chosen, choose) {
  const select = make("select", { on: { change: () => choose(Number(select.value)) } });
  options.forEach((text, i) => select.append(make("option", { value: i, text })));
  select.value = chosen;
  return { element: make("label.choice", {}, make("span", { text: label }), select), select };
}

/** A section with a heading and one sentence. */
export function makeSection(id, heading, sentence, ...children) {
  const about = sentence ? make("p.soft", { text: sentence }) : null;
  return make("section", { id, "aria-labelledby": `${id}-heading` }, make("h2", { id: `${id}-heading`, text: heading }), about, ...children);
}

/** Numbers as people write them: a true minus, two digits. */
export const formatNumber = (value, digits = 2) => value.toFixed(digits).replace("-", "−").replace(/^−(0(\.0+)?)$/, "$1");
