// Mistakes, the surest first: what it saw, and both staircases.

function mistakePictures(record) {
  const row = record.row;
  const picture = (id, label, title) =>
    id !== null &&
    id !== undefined &&
    h("figure", { class: "seen" }, thumb(id, label, { kind: "fluid" }), h("figcaption", {}, title));
  const fit = measured(record.lime_r2) ? `, R\u00b2 ${fixed(record.lime_r2, 2)}` : "";
  const feature =
    record.lime_feature === null || record.lime_feature === undefined ? "" : ` of ${featureLabel(record.lime_feature)}`;
  const list = [
    picture(record.image ?? (rows.thumb[row] >= 0 ? rows.thumb[row] : null), rows.name(row), "The image"),
    picture(record.map, `evidence for ${className(rows.label[row])}`, ["Evidence for ", named(rows.label[row])]),
    picture(record.map_truth, `evidence for ${className(rows.truth[row])}`, ["Evidence for ", named(rows.truth[row])]),
    picture(record.lime, `LIME${feature}`, `LIME${feature}${fit}`),
  ].filter(Boolean);
  return list.length ? h("div", { class: "pictures" }, list) : null;
}

function mistakeDetail(record, position, total, step) {
  const row = record.row;
  const [said, truth] = [rows.label[row], rows.truth[row]];
  const strongest = record.predicted.terms[0]?.feature;
  const lead =
    strongest !== undefined &&
    rows.place.has(strongest) &&
    h(
      "a",
      { href: "#whatif", onclick: () => whatif.choose(strongest, said) },
      `Try without ${featureLabel(strongest)} in `,
      named(said),
    );
  return h(
    "article",
    { class: "mistake", "aria-label": `mistake ${position + 1} of ${total}` },
    h(
      "div",
      { class: "mistake-head" },
      h(
        "div",
        {},
        h("h3", {}, "It said ", named(said), ", it is ", named(truth)),
        h(
          "p",
          { class: "soft" },
          h("bdi", {}, rows.name(row)),
          ` \u00b7 probability ${surely(rows.prob[row])} \u00b7 ${rows.certain[row] ? "certain" : "uncertain"}, ${pValue(rows.p[row])} \u00b7 ${ordinal(rows.decile[row])}`,
        ),
      ),
      h(
        "div",
        { class: "steps" },
        button("\u2190", () => step(-1), { "aria-label": "previous mistake" }),
        button("\u2192", () => step(1), { "aria-label": "next mistake" }),
      ),
    ),
    mistakePictures(record),
    pairOfWaterfalls(record.predicted, record.true, [
      h("span", {}, "For ", named(record.predicted.class), " (its answer)"),
      h("span", {}, "For ", named(record.true.class), " (the truth)"),
    ]),
    h(
      "p",
      { class: "soft links" },
      [lead, h("a", { href: `#compare=${said},${truth}` }, "Compare the two classes")]
        .filter(Boolean)
        .map((link, i) => [i ? " \u00b7 " : "", link]),
    ),
  );
}

function showMistakes() {
  const section = byId("mistakes");
  if (!report.mistakes.length) {
    section.append(
      empty(
        measured(report.verdict.accuracy?.value) && report.verdict.accuracy.value === 1
          ? "It made no mistake on these examples."
          : "No mistakes were kept in this report.",
      ),
    );
    return;
  }
  const strip = h("div", { class: "mistake-list", role: "group", "aria-label": "mistakes, the surest first" });
  const detail = h("div", { class: "mistake-detail" });
  let shown = [];
  let current = 0;
  const show = (position, { focus = false } = {}) => {
    current = (position + shown.length) % shown.length;
    detail.replaceChildren(
      mistakeDetail(shown[current], current, shown.length, (by) => {
        show(current + by);
        address(hashOf());
        detail.querySelectorAll(".steps button")[by > 0 ? 1 : 0]?.focus();
      }),
    );
    [...strip.children].forEach((node, i) => {
      node.setAttribute("aria-pressed", String(i === current));
      node.tabIndex = i === current ? 0 : -1;
      if (focus && i === current) node.focus();
    });
  };
  const hashOf = () => `#mistake=${report.mistakes.indexOf(shown[current])}`;
  const item = (record, i) => {
    const row = record.row;
    const words = `${className(rows.label[row])}, truth ${className(rows.truth[row])}, ${rows.certain[row] ? "certain" : "uncertain"}, probability ${surely(rows.prob[row])}`;
    return button(
      "",
      () => {
        show(i);
        address(hashOf());
      },
      { class: "mistake-item", title: words, "aria-label": words },
    );
  };
  const update = () => {
    shown = report.mistakes.filter((record) => filter.keeps(record.row));
    strip.replaceChildren(
      ...shown.map((record, i) =>
        fill(item(record, i), {}, [
          meta.images &&
            thumb(rows.thumb[record.row] >= 0 ? rows.thumb[record.row] : record.image, rows.name(record.row), {
              kind: "list",
            }),
          h(
            "span",
            { class: "said" },
            named(rows.label[record.row]),
            h("span", { class: "was" }, "is ", named(rows.truth[record.row])),
          ),
          h("span", { class: "soft" }, surely(rows.prob[record.row])),
        ]),
      ),
    );
    note.hidden = filter.decile === null;
    note.replaceChildren(
      `Only ${filter.decile === null ? "" : ordinal(filter.decile)}: ${whole(shown.length)} of ${many(report.mistakes.length, "mistake")}. `,
      button("Show all", () => filter.set(null), { class: "link" }),
    );
    if (shown.length) show(0);
    else
      detail.replaceChildren(empty("None of the mistakes kept here is in that tenth. The examples above hold more."));
  };
  const note = h("p", { class: "filter" });
  strip.addEventListener("keydown", (event) => {
    const to = {
      ArrowRight: current + 1,
      ArrowDown: current + 1,
      ArrowLeft: current - 1,
      ArrowUp: current - 1,
      Home: 0,
      End: shown.length - 1,
    }[event.key];
    if (to === undefined || !shown.length) return;
    event.preventDefault();
    show(to, { focus: true });
    address(hashOf());
  });
  filter.onChange(update);
  section.append(note, h("div", { class: "mistake-frame" }, strip, detail));
  update();
  routes.mistake = (index) => {
    if (!report.mistakes[index]) return;
    if (!shown.includes(report.mistakes[index])) filter.set(null);
    show(shown.indexOf(report.mistakes[index]));
    bring(section, { focus: false });
  };
}
