// The verdict: one sentence, and the figures one would ask for first.

function verdictFigure({ name, figure, format, note, warn = false }) {
  const value = typeof figure === "number" ? figure : figure?.value;
  const has = measured(value);
  const range =
    has && measured(figure?.low) && measured(figure?.high) && `${format(figure.low)} to ${format(figure.high)}`;
  return h(
    "div",
    { class: `figure${warn ? " warn" : ""}` },
    h("dt", {}, name),
    h(
      "dd",
      {},
      h("span", { class: has ? "big" : "big missing" }, has ? format(value) : MISSING),
      range && h("span", { class: "range-text" }, range),
      note && h("span", { class: "why" }, note),
    ),
  );
}

function verdictSentence() {
  const {
    certain_right: right,
    certain_wrong: wrong,
    uncertain_right: unsureRight,
    uncertain_wrong: unsureWrong,
  } = report.trust.counts ?? {};
  const accuracy = report.verdict.accuracy?.value;
  if (!measured(accuracy)) return null;
  const parts = [`It is right on ${percent(accuracy)} of ${many(meta.num_examples, "example")}.`];
  const sure = right + wrong;
  const unsure = unsureRight + unsureWrong;
  if (measured(sure) && sure > 0) {
    parts.push(
      `It calls ${percent(sure / (sure + unsure), 0)} of its answers certain, and ${percent(right / sure)} of those are right;`,
    );
    parts.push(unsure > 0 ? `of the others, ${percent(unsureRight / unsure)} are.` : "there are no others.");
  }
  return h("p", { class: "statement" }, parts.join(" "));
}

function pavpuNote() {
  const { pavpu, pavpu_baseline: baseline } = report.verdict;
  if (!measured(pavpu?.value) || !measured(baseline))
    return { note: "how often certain goes with right and doubt with wrong" };
  const gain = 100 * (pavpu.value - baseline);
  const words =
    gain > 0.05
      ? `${fixed(gain, 1)} points above`
      : gain < -0.05
        ? `${fixed(-gain, 1)} points below`
        : "no better than";
  return { note: `${words} calling everything certain (${percent(baseline)})`, warn: gain <= 0.05 };
}

function showVerdict() {
  const { verdict } = report;
  const perClass = measured(verdict.weights_per_class)
    ? `about ${short(verdict.weights_per_class)} weights for each class`
    : "share of the weights that are not zero";
  const figures = [
    { name: "Accuracy", figure: verdict.accuracy, format: percent, note: "answers that are right" },
    { name: "PAvPU", figure: verdict.pavpu, format: percent, ...pavpuNote() },
    { name: "ECE", figure: verdict.ece, format: percent, note: "gap between stated and real confidence; 0 is best" },
    { name: "NLL", figure: verdict.nll, format: (value) => fixed(value, 3), note: "nats per example; lower is better" },
    {
      name: "Weights in use",
      figure: verdict.nnz,
      format: (value) => percent(value, value < 0.1 ? 1 : 0),
      note: perClass,
    },
    {
      name: "Features per decision",
      figure: verdict.features_per_decision,
      format: (value) => fixed(value, 2),
      note: `of ${whole(meta.num_features)}; ${whole(meta.num_used)} have a weight`,
    },
  ];
  byId("verdict").append(
    ...[verdictSentence()].filter(Boolean),
    h("dl", { class: "strip" }, figures.map(verdictFigure)),
  );
}
