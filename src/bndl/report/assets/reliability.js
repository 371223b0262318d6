// Whether stated confidence is real confidence, and what is left wrong when doubtful answers are set aside.

// Wilson's 95 % interval of a share of n.
function wilson(share, n, z = 1.96) {
  const middle = (share + (z * z) / (2 * n)) / (1 + (z * z) / n);
  const half = (z / (1 + (z * z) / n)) * Math.sqrt((share * (1 - share)) / n + (z * z) / (4 * n * n));
  return [middle - half, middle + half];
}

function reliabilityChart() {
  const bins = report.trust.reliability.filter(
    (bin) => bin.count > 0 && measured(bin.confidence) && measured(bin.accuracy),
  );
  const most = Math.max(1, ...bins.map((bin) => bin.count));
  const draw = (svg, width, height) => {
    const place = axes(svg, width, height, {
      x: { from: 0, to: 1, ticks: [0, 0.25, 0.5, 0.75, 1], format: hundred, title: "how sure it says it is, %" },
      y: { from: 0, to: 1, ticks: [0, 0.25, 0.5, 0.75, 1], format: hundred, title: "how often it is right, %" },
    });
    svg.append(
      s("path", {
        class: "mark",
        d: path([
          [place.x(0), place.y(0)],
          [place.x(1), place.y(1)],
        ]),
      }),
    );
    for (const bin of bins) {
      const [x, y] = [place.x(bin.confidence), place.y(bin.accuracy)];
      const [low, high] = wilson(bin.accuracy, bin.count);
      const off = bin.confidence < low || bin.confidence > high;
      svg.append(
        s("line", { class: off ? "spread off" : "spread", x1: x, x2: x, y1: place.y(low), y2: place.y(high) }),
      );
      svg.append(
        s(
          "circle",
          { class: off ? "dot off" : "dot", cx: x, cy: y, r: 3 + 7 * Math.sqrt(bin.count / most) },
          tip(`${many(bin.count, "example")}: says ${percent(bin.confidence)}, right ${percent(bin.accuracy)}`),
        ),
      );
    }
    svg.append(
      s("text", { class: "mark-text", x: place.x(0.04), y: place.y(0.93), "text-anchor": "start" }, "too modest"),
      s("text", { class: "mark-text", x: place.x(0.97), y: place.y(0.05), "text-anchor": "end" }, "too sure"),
    );
  };
  return chart({
    title: "Does 80 % sure mean right 80 % of the time?",
    height: 320,
    draw,
    label: `Reliability diagram. ${bins.map((bin) => `Says ${percent(bin.confidence, 0)}, right ${percent(bin.accuracy, 0)}`).join(". ")}.`,
    note: "Dots on the dashed line are honest; a larger dot stands for more examples, its line is a 95 % interval. Orange: too far off to be chance.",
    table: tableOf(
      "Reliability",
      ["confidence", "examples", "mean confidence", "right"],
      report.trust.reliability.map((bin) => [
        `${percent(bin.low, 0)} to ${percent(bin.high, 0)}`,
        whole(bin.count),
        percent(bin.confidence),
        percent(bin.accuracy),
      ]),
    ),
  });
}

function riskChart() {
  const { coverage, risk } = report.trust.risk;
  const every = Math.max(1, Math.floor(coverage.length / 300));
  const points = coverage
    .map((at, i) => [at, risk[i]])
    .filter(([, y], i) => measured(y) && (i % every === 0 || i === coverage.length - 1));
  const top = Math.max(0.02, ...points.filter(([at]) => at > 0.02).map(([, y]) => y)) * 1.1;
  const at = (share) =>
    points.reduce(
      (best, point) => (Math.abs(point[0] - share) < Math.abs(best[0] - share) ? point : best),
      points[0] ?? [1, 0],
    );
  const draw = (svg, width, height) => {
    const place = axes(svg, width, height, {
      x: {
        from: 0,
        to: 1,
        ticks: [0, 0.25, 0.5, 0.75, 1],
        format: hundred,
        title: "answers kept, the surest first, %",
      },
      y: { from: 0, to: top, format: (value) => fixed(100 * value, top < 0.05 ? 1 : 0), title: "wrong among them, %" },
    });
    const line = points.map(([x, y]) => [place.x(x), place.y(Math.min(y, top))]);
    if (line.length)
      svg.append(
        s("path", {
          class: "band main",
          d: `${path([...line, [line.at(-1)[0], place.y(0)], [line[0][0], place.y(0)]])}Z`,
        }),
        s("path", { class: "curve main", d: path(line) }),
      );
    for (const share of [0.5, 0.8]) {
      const [x, y] = at(share);
      svg.append(
        s("circle", { class: "dot", cx: place.x(x), cy: place.y(y), r: 4 }),
        s(
          "text",
          { class: "mark-text strong", x: place.x(x) - 8, y: place.y(y) - 10, "text-anchor": "end" },
          percent(y),
        ),
      );
    }
  };
  const words = `Keep the surest half: ${percent(at(0.5)[1])} wrong. Keep 80${THIN}%: ${percent(at(0.8)[1])}. Keep all: ${percent(at(1)[1])}.`;
  return chart({
    title: "What is left wrong when doubtful answers are set aside?",
    height: 320,
    draw,
    label: `Risk against coverage. ${words}`,
    note: words,
    table: tableOf(
      "Risk against coverage",
      ["kept", "wrong among them"],
      Array.from({ length: 20 }, (_, i) => at((i + 1) / 20)).map(([x, y]) => [percent(x, 0), percent(y, 2)]),
    ),
  });
}
