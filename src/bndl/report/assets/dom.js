// Elements, words and numbers. Text from the data only ever becomes a text node or an attribute: never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, properties, children) {
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [name, set] of Object.entries(value)) node.style.setProperty(name, set);
    else if (key === "data") Object.assign(node.dataset, value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);
const byId = (id) => document.getElementById(id);

// Numbers

const MISSING = "not measured";
const THIN = "\u202f"; // a narrow space that does not break
const measured = (value) => typeof value === "number" && Number.isFinite(value);
const minus = (text) => text.replace("-", "\u2212");
const fixed = (value, digits) => (measured(value) ? minus(value.toFixed(digits)) : "\u2013");
const percent = (value, digits = 1) => (measured(value) ? `${minus((100 * value).toFixed(digits))}${THIN}%` : "\u2013");
const whole = (value) => (measured(value) ? String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, THIN) : "\u2013");
const many = (count, one, more = `${one}s`) => `${whole(count)} ${count === 1 ? one : more}`;
function short(value) {
  if (!measured(value)) return "\u2013";
  const size = Math.abs(value);
  if (size > 0 && size < 0.0005) return `${value < 0 ? "\u2212" : "<"}${THIN}0.001`;
  return fixed(value, size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.1 || size === 0 ? 2 : 3);
}
// A probability never reads as certainty: 0.99996 is "> 99.9 %".
function surely(value) {
  if (measured(value) && value > 0.999) return `>${THIN}99.9${THIN}%`;
  return measured(value) && value < 0.001 ? `<${THIN}0.1${THIN}%` : percent(value);
}
const pValue = (value) =>
  measured(value) ? (value < 0.001 ? "p < 0.001" : `p = ${value.toFixed(3)}`) : "p not measured";

// Pieces

const named = (index, properties) => h("bdi", { class: "name", ...properties }, className(index));
const featureLink = (feature) => {
  const known = featureRecords.has(feature);
  const label = featureLabel(feature);
  return known
    ? h("a", { class: "feature-link", href: `#feature=${feature}`, "aria-label": `feature ${label}` }, label)
    : h("span", { class: "feature-link" }, label);
};
const classLink = (index) => h("a", { class: "class-link", href: `#class=${index}` }, named(index));
const button = (label, onclick, properties) => h("button", { type: "button", onclick, ...properties }, label);
const option = (value, label) => h("option", { value }, label);
const field = (label, control) => h("label", { class: "field" }, h("span", {}, label), control);
const empty = (text) => h("p", { class: "empty" }, text);
const announce = (text) => {
  byId("announce").textContent = text;
};

// A table that is only built when somebody opens it.
function tableOf(caption, columns, list) {
  const node = h("details", { class: "numbers" }, h("summary", {}, "Show the numbers"));
  node.addEventListener("toggle", () => {
    if (!node.open || node.querySelector("table")) return;
    const head = h(
      "tr",
      {},
      columns.map((column) => h("th", { scope: "col" }, column)),
    );
    const body = list.map((cells) =>
      h(
        "tr",
        {},
        cells.map((cell, i) => h(i ? "td" : "th", i ? {} : { scope: "row" }, cell)),
      ),
    );
    node.append(
      h(
        "div",
        { class: "scroll" },
        h("table", {}, h("caption", {}, caption), h("thead", {}, head), h("tbody", {}, body)),
      ),
    );
  });
  return node;
}

// Images: tiles of a few sheets, drawn when the sheet is decoded and the tile is near the window or to be printed ----

const decoded = [];
const sheets = (report.thumbs?.sheets ?? []).map((sheet, number) => {
  const image = new Image();
  image.src = String(sheet.uri).startsWith("data:image/") ? sheet.uri : "data:,";
  return image.decode().then(
    () => {
      decoded[number] = image;
    },
    () => {},
  );
});
function paint(canvas) {
  const [sheet, x, y, width, height] = report.thumbs.tiles[Number(canvas.dataset.tile)];
  const draw = () => {
    if (decoded[sheet]) canvas.getContext("2d").drawImage(decoded[sheet], x, y, width, height, 0, 0, width, height);
  };
  seen.unobserve(canvas);
  if (decoded[sheet]) draw(); // at once: a printer does not wait
  else sheets[sheet].then(draw);
}
const seen = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) if (entry.isIntersecting) paint(entry.target);
  },
  { rootMargin: "300px" },
);
const paintAll = () => document.querySelectorAll("canvas[data-tile]").forEach(paint);
window.addEventListener("beforeprint", paintAll);
matchMedia("print").addEventListener("change", (now) => now.matches && paintAll());

function thumb(id, label, { kind = "small" } = {}) {
  const tile = id === null || id === undefined || id < 0 ? null : report.thumbs?.tiles[id];
  if (!tile) return h("span", { class: `thumb blank ${kind}`, role: "img", "aria-label": `${label}: no picture kept` });
  const canvas = h("canvas", {
    class: `thumb ${kind}`,
    width: tile[3],
    height: tile[4],
    role: "img",
    "aria-label": label,
    data: { tile: id },
  });
  seen.observe(canvas);
  return canvas;
}

// Long lists: a page at a time

function longList(box, items, render, { step = 24, className: kind = "tiles", none = "Nothing here." } = {}) {
  const list = h("ul", { class: kind, role: "list" });
  const more = button("", () => {
    grow(step);
  });
  let shown = 0;
  function grow(count) {
    const first = shown;
    const until = Math.min(items.length, shown + count);
    for (; shown < until; shown++) list.append(h("li", {}, render(items[shown], shown)));
    more.hidden = shown >= items.length;
    more.textContent = `Show ${Math.min(step, items.length - shown)} more of ${whole(items.length)}`;
    if (first) list.children[first]?.querySelector("a, button, summary")?.focus({ preventScroll: true });
  }
  box.replaceChildren(items.length ? list : empty(none), h("p", { class: "more" }, more));
  grow(step);
  return {
    reach: (index) => {
      if (index >= shown) grow(index + 1 - shown);
      return list.children[index]?.firstElementChild;
    },
  };
}
