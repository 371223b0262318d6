// Features: the images that excite them, where in the image, and the classes they speak for.

function featureImages(title, list, label) {
  if (!list.length) return null;
  const one = (image) =>
    h(
      "figure",
      { class: "seen" },
      thumb(image.id, `image ${image.example}, ${label} at ${short(image.theta)}`, { kind: "fluid" }),
      image.map !== null &&
        image.map !== undefined &&
        thumb(image.map, `where ${label} looks in image ${image.example}`, { kind: "fluid heat" }),
      h("figcaption", {}, short(image.theta)),
    );
  return h(
    "div",
    { class: "strip-of-images", style: { "--count": String(list.length) } },
    h("h4", {}, title),
    h("div", { class: "images" }, list.map(one)),
  );
}

function featureCard(record) {
  const served = [...record.classes].sort((a, b) => b.weight - a.weight);
  const heavy = served.filter((one) => one.weight >= 0.01 * served[0].weight); // the rest is there, but does nothing
  const list = heavy.slice(0, 6).map((one) => ({ head: classLink(one.index), ...one }));
  return h(
    "article",
    {
      class: "card feature",
      style: { "--most": String(Math.max(1, record.top.length, record.moderate.length)) },
      data: { feature: record.feature },
      "aria-label": `feature ${record.label}`,
    },
    h(
      "div",
      { class: "card-side" },
      h("h3", {}, record.label),
      h(
        "p",
        { class: "soft" },
        `active in ${percent(record.active, 0)} of the examples, ${short(record.mean)} on average`,
      ),
      h("h4", {}, heavy.length === 1 ? "Speaks for one class" : `Speaks for ${heavy.length} classes`),
      weightTable(`Classes that ${record.label} speaks for`, list, { kind: "of-classes" }),
      served.length > list.length &&
        h(
          "p",
          { class: "soft" },
          `and ${served.length - list.length} more with ${heavy.length > list.length ? "less" : "next to no"} weight`,
        ),
      h("p", {}, h("a", { href: "#whatif", onclick: () => whatif.choose(record.feature, null) }, "Try without it")),
    ),
    h(
      "div",
      { class: "card-images" },
      record.top.length || record.moderate.length
        ? [
            featureImages("Strongest", record.top, record.label),
            featureImages("Moderate", record.moderate, record.label),
          ]
        : empty(meta.images ? "No pictures were kept for this feature." : "These data have no pictures."),
    ),
  );
}

function showFeatures() {
  const words = h("input", {
    type: "search",
    id: "features-search",
    placeholder: "f12, or a class",
    autocomplete: "off",
  });
  const order = h(
    "select",
    { id: "features-order" },
    option("weight", "largest weight first"),
    option("active", "most active first"),
    option("classes", "most classes first"),
    option("feature", "by number"),
  );
  const heats = h("input", { type: "checkbox", id: "features-heat", checked: true });
  const box = h("div", {});
  const largest = (record) => Math.max(0, ...record.classes.map((one) => one.weight));
  const orders = {
    weight: (a, b) => largest(b) - largest(a),
    active: (a, b) => b.active - a.active,
    classes: (a, b) => b.classes.length - a.classes.length,
    feature: (a, b) => a.feature - b.feature,
  };
  let list = [];
  let pages = null;
  const fits = (record, text) =>
    record.label.toLowerCase() === text ||
    `f${record.feature}` === text ||
    String(record.feature) === text ||
    record.classes.some((one) => className(one.index).toLowerCase().includes(text));
  const update = () => {
    const text = words.value.trim().toLowerCase();
    list = report.features.filter((record) => !text || fits(record, text)).sort(orders[order.value]);
    pages = longList(box, list, featureCard, {
      step: 6,
      className: "cards one",
      none: "No feature of that name or class.",
    });
  };
  words.addEventListener("input", update);
  order.addEventListener("change", update);
  heats.addEventListener("change", () => box.classList.toggle("no-heat", !heats.checked));
  update();
  const hasHeat = report.features.some((record) =>
    record.top.some((image) => image.map !== null && image.map !== undefined),
  );
  byId("features").append(
    h(
      "div",
      { class: "controls" },
      field("Find a feature", words),
      field("Order", order),
      hasHeat && h("label", { class: "check" }, heats, " Heat maps: where in the image it looks"),
    ),
    box,
  );
  routes.feature = (feature) => {
    if (!featureRecords.has(feature)) return;
    if (!list.some((record) => record.feature === feature)) {
      words.value = "";
      update();
    }
    bring(pages.reach(list.findIndex((record) => record.feature === feature)));
  };
}
