// Classes as short lists of features, and the difference of two lists.

function featureHead(feature) {
  return {
    head: featureLink(feature),
    image: thumb(featureRecords.get(feature)?.top[0]?.id, `what excites ${featureLabel(feature)} most`, {
      kind: "tiny",
    }),
  };
}

function classCard(record) {
  const few = 6;
  const list = record.features.map((one) => ({ ...featureHead(one.feature), ...one }));
  const table = weightTable(`Weights of ${className(record.index)}`, list, { picture: meta.images });
  const rest = record.num_weights - list.length;
  const hidden = [...table.tBodies[0].rows].slice(few);
  for (const line of hidden) line.hidden = true;
  const more =
    hidden.length > 0 &&
    button(
      `Show ${hidden.length} more`,
      () => {
        for (const line of hidden) line.hidden = false;
        more.remove();
      },
      { class: "link" },
    );
  return h(
    "article",
    { class: "card", data: { class: record.index }, "aria-label": `class ${className(record.index)}` },
    h(
      "div",
      { class: "card-head" },
      meta.images && record.example !== null && thumb(record.example, `an example of ${className(record.index)}`),
      h("div", {}, h("h3", {}, named(record.index)), h("p", { class: "soft" }, classFacts(record))),
      report.classes.length > 1 &&
        button("Compare", () => compareWith(record.index), {
          class: "quiet",
          "aria-label": `compare ${className(record.index)} with another class`,
        }),
    ),
    list.length ? table : empty("No weight is left in this class: only its bias speaks."),
    h(
      "p",
      { class: "card-foot" },
      more,
      rest > 0 && h("span", { class: "soft" }, `${many(rest, "other weight")}, ${short(record.rest)} in all`),
    ),
    record.confused.length > 0 &&
      h(
        "p",
        { class: "confused" },
        "Taken for ",
        record.confused.map((one, i) => [
          i ? ", " : "",
          classLink(one.other),
          `${THIN}\u00d7${THIN}${whole(one.count)}`,
        ]),
      ),
  );
}

function classFacts({ accuracy, count, num_weights: weights, bias }) {
  const parts = [
    measured(accuracy?.value) ? `${percent(accuracy.value)} of ${whole(count)} right` : `${many(count, "example")}`,
    many(weights, "weight"),
  ];
  if (bias) parts.push(`bias ${short(bias)}`);
  return parts.join(" \u00b7 ");
}

let compareWith = () => {};

// Both lists side by side. Weights that neither list shows are taken from the page's table of weights where it has them.
function differences(first, second) {
  const weightIn = (target, feature) => {
    const listed = classRecords.get(target)?.features.find((one) => one.feature === feature);
    const position = rows.place.get(feature);
    return listed?.weight ?? (position === undefined ? 0 : rows.phi(position, target));
  };
  const features = new Set([
    ...rows.features,
    ...[first, second].flatMap((target) => (classRecords.get(target)?.features ?? []).map((one) => one.feature)),
  ]);
  return [...features]
    .map((feature) => ({ feature, first: weightIn(first, feature), second: weightIn(second, feature) }))
    .filter((one) => one.first !== one.second)
    .sort((a, b) => Math.abs(b.first - b.second) - Math.abs(a.first - a.second))
    .slice(0, 12);
}

function comparePanel() {
  const select = (id) =>
    h(
      "select",
      { id },
      report.classes.map((record) => option(record.index, className(record.index))),
    );
  const [first, second] = [select("compare-first"), select("compare-second")];
  const box = h("div", { id: "compare-result" });
  const update = () => {
    const [a, b] = [Number(first.value), Number(second.value)];
    if (a === b) {
      box.replaceChildren(empty("Choose two different classes."));
      return;
    }
    const body = differenceRows(differences(a, b));
    const head = h(
      "tr",
      {},
      h("th", { scope: "col" }, "feature"),
      h("th", { scope: "col", class: "value" }, h("span", { class: "hidden" }, "weight in "), named(a)),
      h(
        "th",
        { scope: "col", class: "ends", "aria-hidden": "true" },
        h(
          "span",
          { class: "sides" },
          h("span", {}, "\u2190 for ", named(a)),
          h("span", {}, "for ", named(b), " \u2192"),
        ),
      ),
      h("th", { scope: "col", class: "value" }, h("span", { class: "hidden" }, "weight in "), named(b)),
    );
    box.replaceChildren(
      body.length
        ? h(
            "table",
            { class: "bars difference", "aria-label": `Weights of ${className(a)} less those of ${className(b)}` },
            h("thead", {}, head),
            h("tbody", {}, body),
          )
        : empty("The two lists are the same."),
    );
  };
  for (const control of [first, second])
    control.addEventListener("change", () => {
      update();
      address(`#compare=${first.value},${second.value}`);
    });
  if (report.classes.length > 1) second.selectedIndex = 1;
  const panel = h(
    "details",
    { class: "panel", id: "compare" },
    h("summary", {}, h("h3", {}, "Compare two classes")),
    h(
      "p",
      { class: "soft" },
      "The difference of the two lists. A bar to the left: the first class gives this feature more weight; to the right: the second does.",
    ),
    h(
      "div",
      { class: "controls" },
      field("First", first),
      field("Second", second),
      button("Swap", () => {
        [first.value, second.value] = [second.value, first.value];
        update();
      }),
    ),
    box,
  );
  compareWith = (a, b = null) => {
    first.value = String(a);
    if (b !== null) second.value = String(b);
    else if (Number(second.value) === a)
      second.value = String(
        classRecords.get(a)?.confused[0]?.other ?? report.classes.find((record) => record.index !== a)?.index ?? a,
      );
    panel.open = true;
    update();
    bring(panel);
  };
  routes.compare = (a, b) => {
    if (classRecords.has(a) && classRecords.has(b)) compareWith(a, b);
  };
  update();
  return panel;
}

function showClasses() {
  const orders = {
    index: (a, b) => a.index - b.index,
    name: (a, b) => className(a.index).localeCompare(className(b.index)),
    worst: (a, b) => (a.accuracy?.value ?? 2) - (b.accuracy?.value ?? 2),
    weights: (a, b) => a.num_weights - b.num_weights,
  };
  const words = h("input", {
    type: "search",
    id: "classes-search",
    placeholder: "name or number",
    autocomplete: "off",
  });
  const order = h(
    "select",
    { id: "classes-order" },
    option("index", "as given"),
    option("name", "by name"),
    option("worst", "least accurate first"),
    option("weights", "fewest weights first"),
  );
  const box = h("div", {});
  let list = [];
  let pages = null;
  const update = () => {
    const text = words.value.trim().toLowerCase();
    list = report.classes
      .filter(
        (record) => !text || className(record.index).toLowerCase().includes(text) || String(record.index) === text,
      )
      .sort(orders[order.value]);
    pages = longList(box, list, classCard, { step: 12, className: "cards", none: "No class has that name." });
  };
  words.addEventListener("input", update);
  order.addEventListener("change", update);
  update();
  const controls =
    report.classes.length > 6 && h("div", { class: "controls" }, field("Find a class", words), field("Order", order));
  byId("classes").append(...[report.classes.length > 1 && comparePanel(), controls, box].filter(Boolean));
  routes.class = (index) => {
    if (!classRecords.has(index)) return;
    if (!list.some((record) => record.index === index)) {
      words.value = "";
      update();
    }
    const card = pages.reach(list.findIndex((record) => record.index === index));
    card.querySelector(".card-foot button")?.click();
    bring(card);
  };
}
