// Can I trust it when it is sure: tenths of the examples, the four counts, reliability, risk against coverage.

function decileChart() {
  const { deciles, by } = report.trust;
  const overall = report.verdict.accuracy?.value;
  const bars = [];
  const choose = (index) => {
    filter.set(filter.decile === index ? null : index);
    address(filter.decile === null ? "#trust" : `#decile=${index}`);
  };
  const draw = (svg, width, height) => {
    const place = axes(svg, width, height, {
      x: {
        from: 0,
        to: deciles.length,
        ticks: [],
        title:
          width < 420
            ? "tenths, from surest to least sure"
            : "tenths of the examples, from the surest to the least sure",
      },
      y: { from: 0, to: 1, ticks: [0, 0.25, 0.5, 0.75, 1], format: hundred, title: "right, %" },
      top: 22,
    });
    const step = place.x(1) - place.x(0);
    bars.length = 0;
    deciles.forEach((decile, index) => {
      const left = place.x(index) + step * 0.1;
      const text = decileWords(decile, index);
      const bar = s(
        "g",
        {
          class: "decile",
          role: "button",
          tabindex: "0",
          "aria-label": text,
          data: { decile: index },
          onclick: () => choose(index),
          onkeydown: (event) => {
            if (event.key === "Enter" || event.key === " ") {
              event.preventDefault();
              choose(index);
            }
            const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: deciles.length - 1 }[event.key];
            if (bars[to]) {
              event.preventDefault();
              bars[to].focus();
            }
          },
        },
        tip(text),
        s("rect", { class: "hit", x: place.x(index), y: 0, width: step, height }),
        s("rect", {
          class: "fill",
          x: left,
          y: place.y(decile.accuracy),
          width: step * 0.8,
          height: place.y(0) - place.y(decile.accuracy),
          rx: 2,
        }),
      );
      if (measured(decile.low) && measured(decile.high))
        whisker(bar, left + step * 0.4, place.y(decile.low), place.y(decile.high));
      bar.append(
        s(
          "text",
          { class: "tick", x: left + step * 0.4, y: place.y(0) + 18, "text-anchor": "middle" },
          String(index + 1),
        ),
        s(
          "text",
          decile.accuracy > 0.15
            ? { class: "inside", x: left + step * 0.4, y: place.y(0) - 8, "text-anchor": "middle" }
            : {
                class: "above",
                x: left + step * 0.4,
                y: place.y(decile.high ?? decile.accuracy) - 6,
                "text-anchor": "middle",
              },
          hundred(decile.accuracy),
        ),
      );
      bars.push(bar);
      svg.append(bar);
    });
    if (measured(overall)) {
      svg.append(
        s("line", {
          class: "mark",
          x1: place.x(0),
          x2: place.x(deciles.length),
          y1: place.y(overall),
          y2: place.y(overall),
        }),
        s(
          "text",
          { class: "mark-text", x: place.x(deciles.length), y: place.y(overall) - 6, "text-anchor": "end" },
          `all examples ${hundred(overall)} %`,
        ),
      );
    }
    markChosen();
  };
  const markChosen = () =>
    bars.forEach((bar, index) => {
      bar.setAttribute("aria-pressed", String(filter.decile === index));
      bar.classList.toggle("chosen", filter.decile === index);
      bar.classList.toggle("dim", filter.decile !== null && filter.decile !== index);
    });
  filter.onChange(markChosen);
  return chart({
    title: "How often it is right, by how sure it is",
    height: 300,
    interactive: true,
    draw,
    label:
      "Accuracy in each tenth of the examples, the surest first. Each bar is a button that filters the examples and mistakes.",
    table: tableOf(
      `Accuracy by tenth${by ? `, ordered by ${by}` : ""}`,
      ["tenth", "examples", "right", "95 % interval", "uncertainty"],
      deciles.map((decile, index) => [
        String(index + 1),
        whole(decile.count),
        percent(decile.accuracy),
        `${percent(decile.low)} to ${percent(decile.high)}`,
        `${fixed(decile.least, 4)} to ${fixed(decile.most, 4)}`,
      ]),
    ),
  });
}

const decileWords = (decile, index) =>
  `${ordinal(index)}: ${percent(decile.accuracy)} right (${percent(decile.low)} to ${percent(decile.high)}) of ${many(decile.count, "example")}`;

function countsTable() {
  const counts = report.trust.counts;
  const cell = (count, kind) =>
    h(
      "td",
      { class: kind },
      h("b", {}, whole(count)),
      h("span", { class: "soft" }, percent(count / meta.num_examples)),
    );
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, "The four counts"),
    h(
      "table",
      { class: "counts", "aria-label": "Certain or not, right or wrong" },
      h("thead", {}, h("tr", {}, h("td"), h("th", { scope: "col" }, "right"), h("th", { scope: "col" }, "wrong"))),
      h(
        "tbody",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "row" }, "certain"),
          cell(counts.certain_right, "good"),
          cell(counts.certain_wrong, "bad"),
        ),
        h(
          "tr",
          {},
          h("th", { scope: "row" }, "uncertain"),
          cell(counts.uncertain_right, ""),
          cell(counts.uncertain_wrong, "good"),
        ),
      ),
    ),
    h(
      "p",
      { class: "note" },
      `Certain means p \u2264 ${meta.level}. Blue is as it should be; orange, certain and wrong, is what hurts.`,
    ),
  );
}

function filterLine() {
  const box = h("p", { class: "filter", hidden: true });
  filter.onChange(() => {
    box.hidden = filter.decile === null;
    if (filter.decile === null) {
      announce("All examples are shown.");
      return;
    }
    const decile = report.trust.deciles[filter.decile];
    const wrong = Math.round(decile.count * (1 - decile.accuracy));
    const words = `Shown: ${ordinal(filter.decile)}, ${many(decile.count, "example")}, ${whole(wrong)} of them wrong. `;
    box.replaceChildren(
      words,
      h("a", { href: "#examples" }, "See the examples"),
      " \u00b7 ",
      h("a", { href: "#mistakes" }, "See the mistakes"),
      " \u00b7 ",
      button(
        "Show all again",
        () => {
          filter.set(null);
          address("#trust");
        },
        { class: "link" },
      ),
    );
    announce(words);
  });
  return box;
}

function showTrust() {
  byId("trust").append(
    h("div", { class: "wide-narrow" }, decileChart(), countsTable()),
    filterLine(),
    h("div", { class: "halves" }, reliabilityChart(), riskChart()),
    examplesPanel(),
  );
  routes.decile = (decile) => {
    filter.set(decile);
    bring(byId("trust"), { focus: false });
  };
}
