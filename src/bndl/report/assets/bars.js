// Bars as table rows: a class's weights, the difference of two classes, and the staircase that adds up to a logit.

const share = (value) => `${(100 * Math.min(1, Math.max(0, value))).toFixed(2)}%`;
const span = (kind, from, to) =>
  h("i", { class: kind, style: { left: share(Math.min(from, to)), width: share(Math.abs(to - from)) } });
const track = (...marks) => h("td", { class: "track" }, h("div", { "aria-hidden": "true" }, marks));
const interval = (low, high, format = short) =>
  measured(low) && measured(high) ? `90 % interval ${format(low)} to ${format(high)}` : null;
const value = (number, title, properties) => h("td", { class: "value", title, ...properties }, sized(number));
// Two digits after the point, so that a column can be added up by eye.
const sized = (number) =>
  measured(number) && number !== 0 && Math.abs(number) < 0.005 ? `<${THIN}0.01` : fixed(number, 2);

// The largest weight that is shown anywhere: one scale for all classes and features, so that bars can be compared.
const largestWeight = (() => {
  let weight = 0;
  let high = 0;
  for (const record of report.classes)
    for (const one of record.features) {
      weight = Math.max(weight, one.weight);
      high = Math.max(high, one.high ?? 0);
    }
  return Math.min(high || weight, 1.5 * weight) || 1;
})();

// list = [{head: Node[], weight, low, high}]
function weightTable(caption, list, { most = largestWeight, picture = false, kind = "of-features" } = {}) {
  const body = list.map(({ head, image, weight, low, high }) =>
    h(
      "tr",
      {},
      picture && h("td", { class: "picture" }, image),
      h("th", { scope: "row" }, head),
      track(span("bar", 0, weight / most), measured(low) && measured(high) && span("range", low / most, high / most)),
      value(weight, interval(low, high)),
    ),
  );
  return h("table", { class: `bars ${kind}`, "aria-label": caption }, h("tbody", {}, body));
}

// A difference of two lists: bars to the left speak for the first class, to the right for the second.
function differenceRows(list) {
  const most = Math.max(1e-9, ...list.map((one) => Math.abs(one.first - one.second)));
  return list.map(({ feature, first, second }) => {
    const part = (first - second) / most / 2;
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, featureLink(feature)),
      value(first),
      h(
        "td",
        { class: "track both" },
        h(
          "div",
          { "aria-hidden": "true" },
          span(part >= 0 ? "bar" : "bar other", 0.5, 0.5 - part),
          h("i", { class: "middle" }),
        ),
      ),
      value(second),
    );
  });
}

// Where the staircase goes: each step starts where the last one ended.
function stepsOf(side) {
  let at = 0;
  const steps = [];
  const add = (kind, amount, extra) => {
    steps.push({ kind, amount, from: at, to: at + amount, ...extra });
    at += amount;
  };
  if (side.bias) add("bias", side.bias);
  for (const term of side.terms) add("term", term.value, term);
  if (Math.abs(side.rest) > 5e-7) add("rest", side.rest);
  return { steps, total: at };
}

// The staircase of one logit. `side` is {class, logit, bias, terms, rest}; `most` fixes the scale to compare two.
function waterfall(side, { most = null, title = null, tone = "" } = {}) {
  const { steps, total } = stepsOf(side);
  const top = most ?? highest(side);
  const names = { bias: "bias", rest: "all other features" };
  const body = steps.map((step) =>
    h(
      "tr",
      { class: step.kind },
      h("th", { scope: "row" }, step.kind === "term" ? featureLink(step.feature) : names[step.kind]),
      track(
        span(`bar ${tone}`, step.from / top, step.to / top),
        measured(step.low) &&
          measured(step.high) &&
          span("range", (step.from + step.low) / top, (step.from + step.high) / top),
      ),
      value(step.amount, interval(step.low, step.high), { data: { amount: step.amount } }),
    ),
  );
  const sum = h(
    "tr",
    { class: "total" },
    h("th", { scope: "row" }, "logit"),
    track(span(`bar ${tone}`, 0, total / top)),
    value(total, null, { data: { total } }),
  );
  const off = Math.abs(total - side.logit) > 1e-3 * Math.max(1, Math.abs(side.logit));
  return h(
    "div",
    { class: "waterfall" },
    h(
      "table",
      { class: "bars" },
      h("caption", {}, title ?? named(side.class)),
      h("tbody", {}, body),
      h("tfoot", {}, sum),
    ),
    off && h("p", { class: "warning" }, `The steps add up to ${short(total)}, but the logit is ${short(side.logit)}.`),
  );
}

const highest = (...sides) =>
  Math.max(
    1e-9,
    ...sides.flatMap((side) => {
      const { steps, total } = stepsOf(side);
      return [
        total,
        side.logit,
        ...steps.map((step) =>
          Math.max(step.to, measured(step.high) ? Math.min(step.from + step.high, step.to * 1.25) : 0),
        ),
      ];
    }),
  );

const pairOfWaterfalls = (first, second, titles = []) => {
  const most = highest(first, second);
  return h(
    "div",
    { class: "two" },
    waterfall(first, { most, title: titles[0] }),
    waterfall(second, { most, title: titles[1], tone: "other" }),
  );
};
