// The examples behind the figures: filters, a page of tiles at a time, and one example in full.

function exampleTile(row, { now = null } = {}) {
  const label = now ?? rows.label[row];
  const wrong = label !== rows.truth[row];
  const words = wrong ? `${className(label)}, truth ${className(rows.truth[row])}` : className(label);
  return h(
    "a",
    { class: `tile${wrong ? " wrong" : ""}`, href: `#example=${row}`, title: rows.name(row) },
    meta.images && rows.thumb[row] >= 0
      ? thumb(rows.thumb[row], `${rows.name(row)}: ${words}`)
      : h("span", { class: meta.images ? "thumb blank" : "thumb blank flat" }, h("bdi", {}, rows.name(row))),
    h("span", { class: "said" }, named(label)),
    wrong
      ? h("span", { class: "was" }, "is ", named(rows.truth[row]))
      : h("span", { class: "soft" }, now === null ? surely(rows.prob[row]) : ["was ", named(whatif.labelBefore(row))]),
  );
}

function chosenRows({ outcome, target, words, order }) {
  const keep = {
    all: () => true,
    wrong: rows.wrong,
    right: (row) => !rows.wrong(row),
    "sure-wrong": (row) => rows.certain[row] && rows.wrong(row),
    "unsure-right": (row) => !rows.certain[row] && !rows.wrong(row),
  }[outcome];
  const text = words.trim().toLowerCase();
  const list = [];
  for (let row = 0; row < rows.count; row++) {
    if (!filter.keeps(row) || !keep(row)) continue;
    if (target !== null && rows.truth[row] !== target && rows.label[row] !== target) continue;
    if (text && !rows.name(row).toLowerCase().includes(text) && String(rows.id[row]) !== text) continue;
    list.push(row);
  }
  const sign = order === "sure" ? 1 : -1;
  return list.sort((a, b) => sign * (rows.flip[a] - rows.flip[b]) || a - b);
}

function examplesPanel() {
  const outcome = h(
    "select",
    { id: "examples-outcome" },
    option("all", "right and wrong"),
    option("wrong", "wrong"),
    option("right", "right"),
    option("sure-wrong", "certain but wrong"),
    option("unsure-right", "uncertain but right"),
  );
  const target = h(
    "select",
    { id: "examples-class" },
    option("", "every class"),
    meta.classes.map((_, index) => option(index, className(index))),
  );
  const order = h(
    "select",
    { id: "examples-order" },
    option("sure", "surest first"),
    option("unsure", "least sure first"),
  );
  const words = h("input", {
    type: "search",
    id: "examples-search",
    placeholder: rows.names ? "file name or number" : "number",
    autocomplete: "off",
  });
  const pictured = h("input", { type: "checkbox", id: "examples-pictured", checked: true });
  const lacking = meta.images && rows.thumb.some((id) => id < 0);
  const said = h("p", { class: "soft", id: "examples-said" });
  const box = h("div", {});
  const update = () => {
    const list = chosenRows({
      outcome: outcome.value,
      target: target.value === "" ? null : Number(target.value),
      words: words.value,
      order: order.value,
    });
    const wrong = list.reduce((sum, row) => sum + rows.wrong(row), 0);
    const shown = lacking && pictured.checked ? list.filter((row) => rows.thumb[row] >= 0) : list;
    const part = filter.decile === null ? "" : `, only ${ordinal(filter.decile)}`;
    said.textContent = `${many(list.length, "example")}, ${whole(wrong)} wrong${part}${rows.all ? "" : `; this page holds ${whole(rows.count)} of ${whole(meta.num_examples)}`}.${lacking ? ` ${whole(shown === list ? list.filter((row) => rows.thumb[row] >= 0).length : shown.length)} of them have their picture in this file.` : ""}`;
    longList(box, shown, (row) => exampleTile(row), {
      step: innerWidth < 640 ? 12 : 24,
      none: list.length ? "None of these has a picture in this file." : "No example fits these filters.",
    });
  };
  for (const control of [outcome, target, order, pictured]) control.addEventListener("change", update);
  let later = 0;
  words.addEventListener("input", () => {
    clearTimeout(later);
    later = setTimeout(update, 120);
  });
  filter.onChange(update);
  update();
  routes.example = (row) => {
    if (row < rows.count) showExample(row);
  };
  return h(
    "div",
    { class: "panel", id: "examples" },
    h("h3", {}, "The examples"),
    h(
      "div",
      { class: "controls" },
      field("Answers", outcome),
      field("Class", target),
      field("Order", order),
      field("Find", words),
      lacking && h("label", { class: "check" }, pictured, " Only with a picture"),
    ),
    said,
    box,
  );
}

// One example in full, in a dialog that Esc closes.
function showExample(row) {
  const factorOf = whatif.edits.length ? whatif.factorOf : null;
  const label = factorOf ? whatif.labelOf(row) : rows.label[row];
  const other =
    label === rows.truth[row] ? (rows.runner[row] === label ? rows.label[row] : rows.runner[row]) : rows.truth[row];
  const right = label === rows.truth[row];
  const close = button("Close", () => dialog.close(), { class: "quiet" });
  const dialog = h(
    "dialog",
    { class: "example", "aria-labelledby": "example-title" },
    h("div", { class: "dialog-head" }, h("h3", { id: "example-title" }, h("bdi", {}, rows.name(row))), close),
    h(
      "div",
      { class: "example-body" },
      meta.images && thumb(rows.thumb[row], rows.name(row), { kind: "large" }),
      h(
        "dl",
        { class: "facts" },
        fact("It says", [named(label), ` (${surely(rows.prob[row])}${factorOf ? " before the edits" : ""})`]),
        fact("Truth", [
          named(rows.truth[row]),
          right ? " \u2013 right" : h("strong", { class: "bad-text" }, " \u2013 wrong"),
        ]),
        rows.runner[row] !== rows.truth[row] && fact("Runner-up", [named(rows.runner[row])]),
        fact(
          "Doubt",
          `${rows.certain[row] ? "certain" : "uncertain"}, ${pValue(rows.p[row])}, order would flip ${surely(rows.flip[row])}; ${ordinal(rows.decile[row])}`,
        ),
      ),
    ),
    factorOf && h("p", { class: "note" }, "The staircases below include your edits."),
    pairOfWaterfalls(sideOf(row, label, { factorOf }), sideOf(row, other, { factorOf }), [
      h("span", {}, "For ", named(label), " (its answer)"),
      h("span", {}, "For ", named(other), right ? " (runner-up)" : " (the truth)"),
    ]),
    h(
      "p",
      { class: "note" },
      "Terms come from rounded activations kept in the page; what rounding and small features leave is in the last step, so the sum is exact.",
    ),
  );
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (location.hash.startsWith("#example=")) history.replaceState(null, "", "#examples");
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest?.("a[href^='#']")) dialog.close();
  });
  document.querySelector("dialog.example")?.close();
  document.body.append(dialog);
  dialog.showModal();
}
const fact = (name, what) => h("div", {}, h("dt", {}, name), h("dd", {}, what));
