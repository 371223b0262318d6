// What the live parts share: questions to the server, pictures of examples, and the way trouble is told.

const page = window.bndl;
const { h, s, button, field, option, chart } = page.make;
const { percent, surely, short, fixed, whole, pValue } = page.format;
const meta = page.data.meta;
const named = (index) => h("bdi", { class: "name" }, page.classes.name(index));
const many = (count, one, more = `${one}s`) => `${whole(count)} ${count === 1 ? one : more}`;
const trouble = (error) => h("p", { class: "trouble", role: "alert" }, error.message);
const MAX_BYTES = 10 * 2 ** 20;

const sheet = new CSSStyleSheet();
sheet.replaceSync(STYLE);
document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];

// A question; its answer, or an error with a sentence that can be shown.
async function ask(address, { method = "GET", json = null, body = null, signal = null } = {}) {
  const headers = method === "GET" ? {} : { "x-bndl": "1", "content-type": json === null ? "application/octet-stream" : "application/json" };
  let response = null;
  try {
    response = await fetch(address, { method, headers, body: json === null ? body : JSON.stringify(json), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is bndl explore still running?");
  }
  const record = await response.json().catch(() => null);
  if (response.ok && record !== null) return record;
  throw Object.assign(new Error(record?.error ?? `The server answers ${response.status}.`), { status: response.status });
}

// Of several questions only the last one counts: `only(work, then, fail)` drops the answers of those before it.
function lastOne() {
  let running = null;
  const only = async (work, then, fail) => {
    running?.abort();
    const mine = new AbortController();
    running = mine;
    try {
      const found = await work(mine.signal);
      if (running === mine) then(found);
    } catch (error) {
      if (running === mine && error.name !== "AbortError") fail(error);
    }
  };
  only.stop = () => { running?.abort(); running = null; };
  return only;
}

function later(work, milliseconds) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(work, milliseconds); };
}

// Pictures of examples are asked for together, a screenful at a time.
const pictures = (() => {
  const known = new Map();
  let waiting = [];
  const fetchSome = later(async () => {
    const [now, rest] = [waiting.slice(0, 48), waiting.slice(48)];
    waiting = rest;
    if (rest.length) fetchSome();
    const numbers = [...new Set(now.map((one) => one.number))];
    const found = await ask(`/api/thumbs?${numbers.map((number) => `examples=${number}`).join("&")}`).catch(() => ({}));
    for (const [number, uri] of Object.entries(found)) known.set(Number(number), uri);
    for (const { image, number } of now) if (known.has(number)) image.src = known.get(number);
  }, 20);
  return (number, label) => {
    const image = h("img", { class: "thumb", alt: label, width: 96, height: 96, src: known.get(number) ?? null });
    if (!known.has(number)) { waiting.push({ image, number }); fetchSome(); }
    return image;
  };
})();

const picture = (uri, label, title) => h("figure", { class: "seen" }, h("img", { class: "thumb fluid", src: uri, alt: label }), h("figcaption", {}, title));

// An example of the data as a tile that asks about it.
function exampleTile(row, { edited = false } = {}) {
  const wrong = row.label !== row.truth;
  const words = wrong ? `${page.classes.name(row.label)}, truth ${page.classes.name(row.truth)}` : page.classes.name(row.label);
  return h("a", { class: `tile${wrong ? " wrong" : ""}`, href: `#ask=${row.example}`, role: "listitem", title: row.name, data: { example: row.example } },
    pictures(row.example, `${row.name}: ${words}`), h("span", { class: "said" }, named(row.label)),
    wrong ? h("span", { class: "was" }, "is ", named(row.truth)) : h("span", { class: "soft" }, edited ? ["was ", named(row.before)] : surely(row.probability)));
}

// Figures in a row, as in the verdict.
const figure = (name, value, why, warn = false) => h("div", { class: `figure${warn ? " warn" : ""}` }, h("dt", {}, name),
  h("dd", {}, h("span", { class: "big" }, value), h("span", { class: "why" }, why)));
