// Ask about an image: one of yours, or one of the test set. What it says, how sure it is, why and where.

const asking = (() => {
  const only = lastOne();
  const changed = []; // called with the answer and its question
  const box = h("div", { class: "answer", id: "answer" });
  let question = null; // {image, name, against}
  let answered = null;

  function put(next) {
    question = next;
    box.setAttribute("aria-busy", "true");
    const edits = page.whatif.edits;
    only((signal) => ask("/api/predict", { method: "POST", json: { image: next.image, edits, against: next.against ?? null }, signal }),
      (found) => {
        answered = { ...found, name: next.name ?? found.name, image: next.image, edits };
        box.removeAttribute("aria-busy");
        showAnswer(box, answered);
        for (const listener of changed) listener(answered);
        page.announce(`It says ${page.classes.name(found.label)}, ${surely(found.probability)}`);
      },
      (error) => { box.removeAttribute("aria-busy"); box.replaceChildren(trouble(error)); answered = null; });
  }

  async function upload(file) {
    box.setAttribute("aria-busy", "true");
    try {
      if (file.size > MAX_BYTES) throw new Error(`The file is larger than ${MAX_BYTES / 2 ** 20} MB: send a smaller one.`);
      const { upload: key } = await ask("/api/upload", { method: "POST", body: file });
      put({ image: { upload: key }, name: file.name || "your image" });
    } catch (error) {
      box.removeAttribute("aria-busy");
      box.replaceChildren(trouble(error));
    }
  }

  page.whatif.onChange(later(() => { if (question) put(question); }, 250));
  return {
    box, put, upload, onAnswer: (listener) => { changed.push(listener); },
    against: (index) => put({ ...question, against: index }),
    get answer() { return answered; },
  };
})();

// Probabilities of the likeliest classes, the decision first.
function probabilityTable(found) {
  const row = (head, probability, kind) => h("tr", { class: kind }, h("th", { scope: "row" }, head),
    h("td", { class: "track" }, h("div", { "aria-hidden": "true" }, h("i", { class: `bar${kind ? " other" : ""}`, style: { left: "0", width: `${(100 * probability).toFixed(2)}%` } }))),
    h("td", { class: "value" }, surely(probability)));
  const rows = found.probabilities.map((one, i) => row(page.classes.link(one.class), one.probability, i ? "less" : ""));
  if (found.rest > 0.0005) rows.push(row("all others", found.rest, "less"));
  return h("div", {}, h("h4", {}, "Probability"), h("table", { class: "bars of-classes", "aria-label": "probabilities" }, h("tbody", {}, rows)));
}

// Sampled differences of two scores as a heap of bars; what lies left of zero decides otherwise.
function drawsChart(found) {
  const { differences, first, second } = found.draws;
  const against = differences.filter((value) => value < 0).length;
  const [low, high] = [Math.min(0, ...differences), Math.max(0, ...differences)];
  const width = (high - low || 1) / 40;
  const start = Math.floor(low / width) * width; // so that zero is the edge of a bar
  const bins = Array.from({ length: Math.floor((high - start) / width) + 1 }, () => 0);
  for (const value of differences) bins[Math.min(bins.length - 1, Math.floor((value - start) / width))] += 1;
  const end = start + bins.length * width;
  const names = [page.classes.name(first), page.classes.name(second)];
  const told = `${names[1]} comes out ahead in ${whole(against)} of ${whole(differences.length)} draws`;
  return chart({
    title: "What the posterior\u2019s draws say", label: told, height: 170,
    note: h("span", {}, `Each draw is another plausible version of all weights and activations. `, named(second), ` comes out ahead in ${whole(against)} of ${whole(differences.length)}.`,
      second === found.runner_up && ` The ${surely(found.flip)} above takes this heap for a bell curve.`),
    draw: (svg, wide, tall) => {
      const [left, right, bottom] = [4, wide - 4, tall - 38];
      const x = (value) => left + ((value - start) / (end - start)) * (right - left);
      const most = Math.max(...bins);
      bins.forEach((count, i) => {
        if (!count) return;
        const [from, height] = [x(start + i * width), (count / most) * (bottom - 12)];
        svg.append(s("rect", { class: start + (i + 0.5) * width < 0 ? "draw against" : "draw", x: from + 0.5, y: bottom - height, width: Math.max(1, x(start + (i + 1) * width) - from - 1), height }));
      });
      svg.append(s("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }), s("line", { class: "mark", x1: x(0), x2: x(0), y1: 2, y2: bottom }));
      for (const value of [start, end]) if (Math.abs(x(value) - x(0)) > 40) svg.append(s("text", { x: x(value), y: bottom + 15, "text-anchor": value === start ? "start" : "end" }, short(value)));
      svg.append(s("text", { x: x(0), y: bottom + 15, "text-anchor": x(0) < 30 ? "start" : x(0) > wide - 30 ? "end" : "middle" }, "0"),
        s("text", { class: "axis-title", x: (left + right) / 2, y: tall - 4, "text-anchor": "middle" }, clipped(`score of ${names[0]} less that of ${names[1]}`, wide / 7)));
    },
  });
}
const clipped = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, Math.floor(most) - 1))}\u2026` : text);

function answerHead(found) {
  const right = found.truth === null ? null : found.label === found.truth;
  const doubt = found.certain ? "certain" : "uncertain";
  const tenth = found.decile === null ? "" : ` \u00b7 tenth ${found.decile + 1} from the surest`;
  const compare = h("select", { id: "ask-against", onchange: () => asking.against(Number(compare.value)) },
    meta.classes.map((_, index) => (index === found.label ? null : option(index, page.classes.name(index)))));
  compare.value = String(found.other);
  return h("div", { class: "answer-head" },
    h("div", {},
      h("h3", {}, "It says ", named(found.label), right === null ? null : right ? h("span", { class: "badge good" }, "right") : h("span", { class: "badge bad" }, "wrong: it is ", named(found.truth))),
      h("p", { class: "soft" }, h("bdi", {}, found.name), ` \u00b7 ${surely(found.probability)} \u00b7 ${doubt}, ${pValue(found.p_value)} \u00b7 order would flip ${surely(found.flip)}${tenth}`),
      found.edited && h("p", { class: "edited" }, `With your ${many(page.whatif.edits.length, "edit")}. `, found.before.label === found.label ? "The answer is the same without." : ["Without: ", named(found.before.label), `, ${surely(found.before.probability)}.`])),
    field("Compare with", compare));
}

function showAnswer(box, found) {
  const { pictures: shown } = found;
  const staircases = h("div", {});
  page.showWaterfalls(staircases, found.predicted, found.against, [h("span", {}, "For ", named(found.label)), h("span", {}, "For ", named(found.other))]);
  const views = [picture(shown.image, found.name, "The image"),
    shown.map && picture(shown.map, `evidence for ${page.classes.name(found.label)}`, ["Evidence for ", named(found.label)]),
    shown.map_against && picture(shown.map_against, `evidence for ${page.classes.name(found.other)}`, ["Evidence for ", named(found.other)])];
  const looks = shown.features.map((one) => picture(one.map, `where ${one.label} looks`, page.features.link(one.feature)));
  box.replaceChildren(answerHead(found),
    h("div", { class: "answer-grid" }, h("div", { class: "answer-views" }, views), probabilityTable(found), drawsChart(found)),
    staircases,
    looks.length ? h("div", { class: "looks" }, h("h4", {}, "Where its strongest features look"), h("div", { class: "looks-list" }, looks)) : "",
    limePanel(found));
}

// Choosing

function dropZone() {
  const input = h("input", { type: "file", id: "ask-file", class: "hidden", accept: "image/jpeg,image/png,image/webp,image/bmp,image/gif" });
  const zone = h("label", { class: "drop", for: "ask-file" }, h("strong", {}, "Choose a picture"), h("span", { class: "soft" }, "or drop or paste one here. JPEG, PNG, WebP, BMP or GIF, up to 10\u202fMB. It stays on the machine that runs bndl."));
  const take = (files) => { if (files?.length) asking.upload(files[0]); };
  input.addEventListener("change", () => { take(input.files); input.value = ""; });
  for (const kind of ["dragenter", "dragover"]) zone.addEventListener(kind, (event) => { event.preventDefault(); zone.classList.add("over"); });
  for (const kind of ["dragleave", "drop"]) zone.addEventListener(kind, () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => { event.preventDefault(); take(event.dataTransfer.files); });
  document.addEventListener("paste", (event) => { take([...(event.clipboardData?.files ?? [])].filter((file) => file.type.startsWith("image/"))); });
  return h("div", {}, h("h3", {}, "Yours"), input, zone);
}

function exampleChooser() {
  const only = lastOne();
  const number = h("input", { type: "text", inputmode: "numeric", id: "ask-number", placeholder: `0 to ${meta.num_examples - 1}`, autocomplete: "off" });
  const outcome = h("select", { id: "ask-outcome" }, option("wrong", "wrong"), option("all", "right and wrong"), option("right", "right"), option("sure-wrong", "certain but wrong"), option("unsure-right", "uncertain but right"));
  const target = h("select", { id: "ask-class" }, option("", "every class"), meta.classes.map((_, index) => option(index, page.classes.name(index))));
  const decile = h("select", { id: "ask-decile" }, option("", "every tenth"), page.data.trust.deciles.map((_, index) => option(index, `tenth ${index + 1}${index === 0 ? ", the surest" : ""}`)));
  const list = h("div", { class: "tiles", role: "list" });
  const said = h("p", { class: "soft", id: "ask-said" });
  const more = button("Show more", () => load(false));
  function load(anew) {
    const start = anew ? 0 : list.children.length;
    const asked = new URLSearchParams({ outcome: outcome.value, start, count: innerWidth < 640 ? 6 : 12 });
    if (target.value !== "") asked.set("target", target.value);
    if (decile.value !== "") asked.set("decile", decile.value);
    only((signal) => ask(`/api/examples?${asked}`, { signal }), (found) => {
      const tiles = found.examples.map((row) => exampleTile(row));
      if (anew) list.replaceChildren(...tiles); else list.append(...tiles);
      more.hidden = list.children.length >= found.total;
      said.textContent = found.total ? `${many(found.total, "example")}, surest first` : "No example fits.";
    }, (error) => said.replaceChildren(trouble(error)));
  }
  const jump = () => {
    const text = number.value.trim();
    if (text === "") return;
    if (!/^\d{1,9}$/.test(text) || Number(text) >= meta.num_examples) { said.replaceChildren(trouble(new Error(`The examples are numbered from 0 to ${meta.num_examples - 1}.`))); return; }
    location.hash = `#ask=${Number(text)}`;
  };
  number.addEventListener("change", jump);
  for (const control of [outcome, target, decile]) control.addEventListener("change", () => load(true));
  load(true);
  return h("div", {}, h("h3", {}, "Of the data"), h("div", { class: "controls" }, field("Number", number), field("Answers", outcome), field("Class", target), field("Certainty", decile)), list, h("div", { class: "chooser-foot" }, said, more));
}

function followAsk() {
  const found = /^#ask=(\d{1,9})$/.exec(location.hash);
  if (!found || Number(found[1]) >= meta.num_examples) return;
  asking.put({ image: { example: Number(found[1]) } });
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  asking.box.scrollIntoView({ block: "start", behavior: still ? "auto" : "smooth" });
}
