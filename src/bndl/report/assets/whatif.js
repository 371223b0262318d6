// The controls of the what-if section: one feature, one class or all, one slider; and what it mends and breaks.

const FACTORS = [
  [0, "off"],
  [0.5, "half"],
  [1, "as it is"],
  [2, "double"],
];
const factorWords = (factor) => (factor === 0 ? "off" : factor === 1 ? "as it is" : `\u00d7${THIN}${fixed(factor, 2)}`);

function editList() {
  const list = h("ul", { class: "edits" });
  const undo = button("Undo", () => whatif.undo(), { id: "edit-undo" });
  const redo = button("Redo", () => whatif.redo(), { id: "edit-redo" });
  const reset = button("Reset", () => whatif.apply([]), { id: "edit-reset" });
  const save = button("Save the edits as JSON", () => download("edits.json", JSON.stringify(whatif.edits, null, 2)), {
    id: "edit-save",
  });
  const update = () => {
    const { edits } = whatif;
    list.replaceChildren(
      ...edits.map((edit) =>
        h(
          "li",
          {},
          h(
            "span",
            {},
            featureLink(edit.feature),
            " in ",
            edit.target === null ? "all classes" : named(edit.target),
            ": ",
            h("strong", {}, factorWords(edit.factor)),
            edit.note && h("span", { class: "soft" }, " \u2013 ", h("bdi", {}, edit.note)),
          ),
          button("Change", () => whatif.choose(edit.feature, edit.target), {
            class: "link",
            "aria-label": `change the edit of ${featureLabel(edit.feature)}`,
          }),
          button("Remove", () => whatif.set(edit.feature, edit.target, 1), {
            class: "link",
            "aria-label": `remove the edit of ${featureLabel(edit.feature)}`,
          }),
        ),
      ),
    );
    if (!edits.length) list.append(h("li", { class: "soft" }, "No edit yet. Move the slider."));
    undo.disabled = !whatif.canUndo;
    redo.disabled = !whatif.canRedo;
    reset.disabled = save.disabled = !edits.length;
  };
  whatif.onChange(update);
  update();
  return h(
    "div",
    { class: "edit-list" },
    h("h3", {}, "Your edits"),
    list,
    h("div", { class: "buttons" }, undo, redo, reset, save),
    h(
      "p",
      { class: "note" },
      "Each entry of the file is a bndl.edit.Edit. An edit that was chosen by looking at these examples looks better on them than it is: test it on others before you believe it.",
    ),
  );
}

function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function editControls() {
  const byWeight = [...rows.features].sort((a, b) => a - b);
  const feature = h(
    "select",
    { id: "edit-feature" },
    byWeight.map((one) => option(one, featureOption(one))),
  );
  const target = h("select", { id: "edit-class" });
  const slider = h("input", {
    type: "range",
    id: "edit-factor",
    min: 0,
    max: 2,
    step: 0.05,
    value: 1,
    list: "edit-ticks",
    "aria-describedby": "edit-now",
  });
  const now = h("output", { id: "edit-now", for: "edit-factor" });
  const note = h("input", {
    type: "text",
    id: "edit-note",
    maxlength: 200,
    placeholder: "why (kept with the edit)",
    autocomplete: "off",
  });
  const chosen = () => [Number(feature.value), target.value === "" ? null : Number(target.value)];
  const factorNow = () => {
    const [k, c] = chosen();
    return whatif.edits.find((edit) => edit.feature === k && edit.target === c) ?? { factor: 1, note: "" };
  };
  const say = () => {
    now.textContent = factorWords(Number(slider.value));
    slider.setAttribute("aria-valuetext", now.textContent);
  };
  const sync = () => {
    const { factor, note: words } = factorNow();
    slider.value = String(factor);
    note.value = words;
    say();
  };
  const classes = (keep = "") => {
    const position = rows.place.get(Number(feature.value));
    const served = meta.classes
      .map((_, index) => index)
      .filter((index) => rows.phi(position, index) > 0)
      .sort((a, b) => rows.phi(position, b) - rows.phi(position, a));
    target.replaceChildren(
      option("", `all classes (${served.length} with a weight)`),
      ...served.map((index) => option(index, `${className(index)} (weight ${short(rows.phi(position, index))})`)),
    );
    target.value = keep;
    if (target.selectedIndex < 0) target.value = "";
  };
  const set = (factor, step) => whatif.set(...chosen(), factor, { note: note.value, step });
  feature.addEventListener("change", () => {
    classes();
    sync();
  });
  target.addEventListener("change", sync);
  slider.addEventListener("input", () => {
    say();
    set(Number(slider.value), false);
  });
  slider.addEventListener("change", () => {
    set(Number(slider.value), true);
  });
  note.addEventListener("change", () => {
    if (factorNow().factor !== 1) set(factorNow().factor, true);
  });
  whatif.onChange(() => {
    if (Number(slider.value) !== factorNow().factor) sync();
  });
  whatif.choose = (k, c) => {
    if (!rows.place.has(k)) return;
    feature.value = String(k);
    classes(c === null ? "" : String(c));
    sync();
  };
  if (rows.features.length) {
    feature.value = String(startFeature());
    classes();
    sync();
  }
  return h(
    "div",
    { class: "edit-controls" },
    h("div", { class: "controls" }, field("Feature", feature), field("Class", target)),
    h(
      "div",
      { class: "slider" },
      h("label", { for: "edit-factor" }, "Weight "),
      now,
      slider,
      h(
        "datalist",
        { id: "edit-ticks" },
        FACTORS.map(([factor]) => option(factor, "")),
      ),
      h(
        "div",
        { class: "buttons" },
        FACTORS.map(([factor, label]) =>
          button(
            label,
            () => {
              slider.value = String(factor);
              say();
              set(factor, true);
            },
            { data: { factor } },
          ),
        ),
      ),
    ),
    field("Note", note),
  );
}

const featureOption = (feature) => {
  const record = featureRecords.get(feature);
  const best = record && [...record.classes].sort((a, b) => b.weight - a.weight)[0];
  return best ? `${featureLabel(feature)} (most for ${className(best.index)})` : featureLabel(feature);
};
const startFeature = () =>
  report.mistakes.map((record) => record.predicted.terms[0]?.feature).find((feature) => rows.place.has(feature)) ??
  rows.features[0];

function showWhatif() {
  const section = byId("whatif");
  if (!rows.count || !rows.features.length) {
    section.append(empty("The page holds no examples to try edits on."));
    return;
  }
  const { box, lists } = effectPanel();
  section.append(h("div", { class: "bench" }, editControls(), box, editList(), suggestions()), lists);
}
