// Faithfulness: curves against chance, and what is left of the maps when the network is forgotten.

function curveChart(title, note, curvesOf, xTitle) {
  if (!curvesOf) return null;
  const kinds = {
    bndl: ["this explanation", "main"],
    dense: ["the dense model's", "plain"],
    random: ["random order", "chance"],
  };
  const series = Object.entries(kinds)
    .filter(([key]) => curvesOf[key])
    .map(([key, [name, kind]]) => {
      const { auc } = curvesOf[key];
      const range = measured(auc?.low) ? ` (${fixed(auc.low, 3)} to ${fixed(auc.high, 3)})` : "";
      return {
        name,
        kind,
        curve: curvesOf[key],
        note: measured(auc?.value) ? `area ${fixed(auc.value, 3)}${range}` : null,
      };
    });
  if (!series.length) return null;
  const draw = (svg, width, height) => {
    const tops = series.flatMap(({ curve }) => [...curve.mean, ...(curve.high ?? [])]).filter(measured);
    curves(svg, width, height, {
      series,
      x: { from: 0, to: 1, ticks: [0, 0.25, 0.5, 0.75, 1], format: hundred, title: xTitle },
      y: {
        from: 0,
        to: Math.max(1, ...tops),
        ticks: [0, 0.25, 0.5, 0.75, 1],
        format: (value) => fixed(value, 2),
        title: "probability of its answer",
      },
    });
  };
  const fractions = series[0].curve.fractions;
  const figure = chart({
    title,
    note,
    height: 280,
    draw,
    label: `${title} ${series.map((one) => `${one.name}: ${one.note ?? "no area"}`).join("; ")}.`,
    table: tableOf(
      title,
      ["share, %", ...series.map((one) => one.name)],
      fractions.map((fraction, i) => [hundred(fraction), ...series.map(({ curve }) => fixed(curve.mean[i], 3))]),
    ),
  });
  figure.querySelector("figcaption").after(legend(series));
  return figure;
}

function randomisationWords(list) {
  const last = list[list.length - 1].correlation;
  if (!measured(last)) return "";
  const drawn = " After the lowest part shown was drawn anew the maps";
  return Math.abs(last) <= 0.2
    ? `${drawn} agree to ${fixed(last, 2)} only: they depend on what was learned.`
    : `${drawn} still agree to ${fixed(last, 2)}: they depend partly on the image alone, as maps of edges do.`;
}

function randomisationTable(list) {
  if (!list?.length) return null;
  const body = list.map(({ module, correlation }) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("bdi", {}, module)),
      track(span("bar", 0, Math.abs(correlation ?? 0))),
      h("td", { class: "value" }, fixed(correlation, 2)),
    ),
  );
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, "Forget the network, from the top down: do the maps change?"),
    h(
      "table",
      { class: "bars", "aria-label": "Rank correlation of the maps with the original ones" },
      h("tbody", {}, body),
    ),
    h(
      "p",
      { class: "note" },
      "Rank correlation with the original maps after drawing each part of the network anew, with all parts above it. Near 0 is good.",
      h("span", { class: "found" }, randomisationWords(list)),
    ),
  );
}

function showFaithfulness() {
  const section = byId("faithfulness");
  const found = report.faithfulness;
  const parts =
    found &&
    [
      curveChart(
        "Take away the marked parts",
        "Lower is better: the answer falls quickly when what mattered is gone.",
        found.deletion,
        "image taken away, the most important first, %",
      ),
      curveChart(
        "Show only the marked parts",
        "Higher is better: a little of what matters is enough.",
        found.insertion,
        "image shown, the most important first, %",
      ),
      curveChart(
        "Take away the features",
        "Exact: the terms of the decision themselves, largest first.",
        found.feature_deletion,
        "features taken away, %",
      ),
      randomisationTable(found.randomisation),
    ].filter(Boolean);
  if (!parts?.length) {
    section.append(empty("Faithfulness was not measured for this report."));
    return;
  }
  section.append(
    h("p", { class: "soft" }, `Over ${many(found.images, "image")}; bands are 95 % intervals.`),
    h("div", { class: "halves" }, parts),
  );
}
