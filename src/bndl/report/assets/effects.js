// What edits mend and break, with the examples; and single weights that are worth a try.

function effectPanel() {
  const box = h("div", { class: "effect", id: "effect" });
  let later = 0;
  const lists = h("div", { class: "halves" });
  const update = () => {
    const found = whatif.effect();
    const [was, is] = [found.rightBefore / found.count, found.rightAfter / found.count];
    const gain = found.rightAfter - found.rightBefore;
    box.replaceChildren(
      h(
        "dl",
        { class: "strip four" },
        verdictFigure({
          name: "Right before",
          figure: was,
          format: percent,
          note: `of ${many(found.count, "example")} in this page`,
        }),
        verdictFigure({
          name: "Right after",
          figure: is,
          format: percent,
          note: gain === 0 ? "no more and no fewer" : `${whole(Math.abs(gain))} ${gain > 0 ? "more" : "fewer"}`,
          warn: gain < 0,
        }),
        verdictFigure({ name: "Mended", figure: found.fixed.length, format: whole, note: "were wrong, now right" }),
        verdictFigure({
          name: "Broken",
          figure: found.broken.length,
          format: whole,
          note: "were right, now wrong",
          warn: found.broken.length > 0,
        }),
      ),
      ...[
        wholeSet(found),
        found.moved.length > 0 &&
          h(
            "p",
            { class: "soft" },
            `${many(found.moved.length, "other answer")} changed from one wrong class to another.`,
          ),
      ].filter(Boolean),
    );
    const part = (title, all) => {
      const list = meta.images ? [...all].sort((a, b) => (rows.thumb[a] < 0) - (rows.thumb[b] < 0)) : all;
      const tiles = h("div", {});
      longList(tiles, list, (row) => exampleTile(row, { now: whatif.labelOf(row) }), { step: 12, none: "None." });
      return h("div", {}, h("h3", {}, `${title} (${whole(list.length)})`), tiles);
    };
    clearTimeout(later); // a slider on its way says nothing until it rests
    later = setTimeout(
      () =>
        announce(
          `${percent(is)} right after, ${percent(was)} before; ${whole(found.fixed.length)} mended, ${whole(found.broken.length)} broken.`,
        ),
      500,
    );
    lists.hidden = !whatif.edits.length;
    lists.replaceChildren(...(lists.hidden ? [] : [part("Mended", found.fixed), part("Broken", found.broken)]));
  };
  whatif.onChange(update);
  update();
  clearTimeout(later);
  return { box, lists };
}

// What the counts mean for all examples, where the page holds only a part of them.
function wholeSet(found) {
  if (rows.all) return null;
  const [here, total] = [whole(found.count), whole(meta.num_examples)];
  if (whatif.standsFor === null)
    return h("p", { class: "note" }, `The page holds ${here} of ${total} examples; these counts are of those alone.`);
  const right = Math.round(found.rightBefore * whatif.standsFor);
  const broken = found.broken.length * whatif.standsFor;
  return h(
    "p",
    { class: "note" },
    `The page holds every mistake but only ${whole(found.rightBefore)} of ${whole(right)} right answers. For all ${total} examples this means about ` +
      `${whole(found.fixed.length)} mended and ${whole(broken)} broken: ${percent((right + found.fixed.length - broken) / meta.num_examples, 2)} right after, ${percent(right / meta.num_examples, 2)} before.`,
  );
}

// Single weights that, switched off, mend more than they break: a place to start, chosen on these very examples.
function suggestions() {
  const found = whatif.worthATry(5);
  const box = h("div", { class: "edit-ideas" }, h("h3", {}, "Worth a try"));
  if (!found.length)
    box.append(h("p", { class: "soft" }, "No single weight, switched off, mends more than it breaks."));
  else
    box.append(
      h(
        "ul",
        { class: "edits" },
        found.map(({ feature, target, fixed: mended, broken }) =>
          h(
            "li",
            {},
            h(
              "span",
              {},
              featureLink(feature),
              " in ",
              named(target),
              " off: ",
              h("span", { class: "soft" }, `mends ${whole(mended)}, breaks ${whole(broken)}`),
            ),
            button(
              "Try",
              () => {
                whatif.choose(feature, target);
                whatif.set(feature, target, 0);
              },
              { class: "link", "aria-label": `switch ${featureLabel(feature)} off in ${className(target)}` },
            ),
          ),
        ),
      ),
    );
  return box;
}
