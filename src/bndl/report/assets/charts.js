// Charts as SVG, drawn anew for the width there is, so that their letters keep their size on a phone.

const scaleOf = (from, to, start, end) => (value) => start + ((value - from) / (to - from || 1)) * (end - start);

function roundTicks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((times) => times * power).find((size) => size >= rough * 0.999);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step)
    ticks.push(Number(tick.toPrecision(12)));
  return ticks;
}

// A figure whose picture follows its width. `draw(svg, width, height)` fills an empty svg.
function chart({ title, label, height = 260, interactive = false, draw, table = null, note = null }) {
  const box = h("div", { class: "plot" });
  const figure = h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, title),
    box,
    note && h("p", { class: "note" }, note),
    table,
  );
  let last = 0;
  let redraw = () => {
    const width = Math.floor(box.clientWidth);
    if (!width) return;
    last = width;
    const svg = s("svg", {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: interactive ? "group" : "img",
      "aria-label": label,
    });
    draw(svg, width, height);
    box.replaceChildren(svg);
  };
  new ResizeObserver(() => {
    if (Math.floor(box.clientWidth) !== last) redraw();
  }).observe(box);
  figure.redraw = redraw;
  return figure;
}

// Axes with titles; returns the two scales. `x` and `y` are {from, to, title, ticks?, format?}.
function axes(svg, width, height, { x, y, left = 54, right = 14, top = 14, bottom = 46 }) {
  const place = { x: scaleOf(x.from, x.to, left, width - right), y: scaleOf(y.from, y.to, height - bottom, top) };
  for (const tick of y.ticks ?? roundTicks(y.from, y.to, 4)) {
    svg.append(
      s("line", {
        class: tick === y.from ? "axis" : "grid",
        x1: left,
        x2: width - right,
        y1: place.y(tick),
        y2: place.y(tick),
      }),
      s("text", { class: "tick", x: left - 8, y: place.y(tick) + 4, "text-anchor": "end" }, (y.format ?? short)(tick)),
    );
  }
  for (const tick of x.ticks ?? roundTicks(x.from, x.to, width < 420 ? 4 : 5)) {
    svg.append(
      s(
        "text",
        { class: "tick", x: place.x(tick), y: height - bottom + 18, "text-anchor": "middle" },
        (x.format ?? short)(tick),
      ),
    );
  }
  svg.append(
    s("text", { class: "axis-title", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, x.title),
  );
  svg.append(
    s(
      "text",
      {
        class: "axis-title",
        x: 0,
        y: 0,
        "text-anchor": "middle",
        transform: `translate(11 ${(top + height - bottom) / 2}) rotate(-90)`,
      },
      y.title,
    ),
  );
  return place;
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
const tip = (text) => s("title", {}, text);
const hundred = (value) => fixed(100 * value, 0);

function whisker(svg, x, low, high, wide = 4) {
  svg.append(
    s("path", {
      class: "whisker",
      d: `M${x - wide} ${low}H${x + wide}M${x} ${low}V${high}M${x - wide} ${high}H${x + wide}`,
    }),
  );
}

// Some curves with bands over fractions: series = [{name, kind, curve, unit}], curve = {fractions, mean, low, high}.
function curves(svg, width, height, { series, x, y }) {
  const place = axes(svg, width, height, { x, y });
  for (const { curve, kind } of series) {
    const at = curve.fractions.map((fraction, i) => [fraction, i]).filter(([, i]) => measured(curve.mean[i]));
    if (curve.low && curve.high && at.every(([, i]) => measured(curve.low[i]) && measured(curve.high[i]))) {
      const upper = at.map(([fraction, i]) => [place.x(fraction), place.y(Math.min(y.to, curve.high[i]))]);
      const lower = at.map(([fraction, i]) => [place.x(fraction), place.y(Math.max(y.from, curve.low[i]))]).reverse();
      svg.append(s("path", { class: `band ${kind}`, d: `${path([...upper, ...lower])}Z` }));
    }
  }
  for (const { curve, kind, name } of series) {
    const at = curve.fractions.map((fraction, i) => [fraction, curve.mean[i]]).filter(([, mean]) => measured(mean));
    svg.append(
      s(
        "path",
        { class: `curve ${kind}`, d: path(at.map(([fraction, mean]) => [place.x(fraction), place.y(mean)])) },
        tip(name),
      ),
    );
  }
  return place;
}

const legend = (series) =>
  h(
    "ul",
    { class: "legend" },
    series.map(({ name, kind, note }) =>
      h(
        "li",
        {},
        s("svg", { width: 26, height: 10, "aria-hidden": "true" }, s("path", { class: `curve ${kind}`, d: "M1 5H25" })),
        h("span", {}, name),
        note && h("span", { class: "soft" }, note),
      ),
    ),
  );
