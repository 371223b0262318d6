// Edits on all of the data, decided anew by the server; and the edited model, kept.

function editsPanel() {
  const only = lastOne();
  const figures = h("div", { class: "effect", id: "whole-effect", "aria-live": "polite" }); // in place of the page's own estimate
  const lists = h("div", { class: "halves live" });
  const saved = h("p", { class: "soft", id: "save-said", role: "status" });
  const save = button("Save the edited model", keep, { id: "save-model" });

  async function keep() {
    save.disabled = true;
    try {
      const found = await ask("/api/save", { method: "POST", json: { edits: page.whatif.edits } });
      saved.replaceChildren("Saved: ", h("code", {}, `${found.folder}/`), found.files.join(", "), ". To go on from it: ", h("code", {}, `bndl explore \u2026 --head ${found.folder}/model.safetensors`));
      saved.classList.remove("warning");
    } catch (error) { saved.replaceChildren(trouble(error)); }
    save.disabled = !page.whatif.edits.length;
  }

  function part(title, rows, count) {
    const tiles = h("div", { class: "tiles", role: "list" });
    const more = button("", grow);
    function grow() {
      tiles.append(...rows.slice(tiles.children.length, tiles.children.length + 12).map((row) => exampleTile(row, { edited: true })));
      more.hidden = tiles.children.length >= rows.length;
      more.textContent = `Show ${Math.min(12, rows.length - tiles.children.length)} more`;
    }
    grow();
    return h("div", {}, h("h3", {}, `${title} (${whole(count)})`), count ? tiles : h("p", { class: "empty" }, "None."), h("p", { class: "more" }, more));
  }

  function show(found) {
    const gain = found.num_fixed - found.num_broken;
    const other = found.num_changed - found.num_fixed - found.num_broken;
    const classes = [...found.by_class].sort((a, b) => b.fixed + b.broken - a.fixed - a.broken).slice(0, 6);
    figures.removeAttribute("aria-busy");
    figures.replaceChildren(
      h("dl", { class: "strip four" },
        figure("Right before", percent(found.right_before, 2), `of all ${many(found.count, "example")}`),
        figure("Right after", percent(found.right_after, 2), gain === 0 ? "no more and no fewer" : `${whole(Math.abs(gain))} ${gain > 0 ? "more" : "fewer"}`, gain < 0),
        figure("Mended", whole(found.num_fixed), `were wrong, now right; it was certain of ${whole(found.sure_fixed)}`),
        figure("Broken", whole(found.num_broken), `were right, now wrong; it was certain of ${whole(found.sure_broken)}`, found.num_broken > 0)),
      classes.length ? h("p", { class: "note" }, "By true class: ", classes.map((one, i) => [i ? "; " : "", h("strong", {}, named(one.class)), `: ${whole(one.fixed)} mended, ${whole(one.broken)} broken`]), ".") : "",
      other > 0 ? h("p", { class: "note" }, `${many(other, "other answer")} changed from one wrong class to another.`) : "");
    lists.replaceChildren(part("Mended", found.fixed, found.num_fixed), part("Broken", found.broken, found.num_broken));
  }

  function update() {
    const { edits } = page.whatif;
    save.disabled = !edits.length;
    box.hidden = !edits.length;
    figures.setAttribute("aria-busy", "true");
    only((signal) => ask("/api/effect", { method: "POST", json: { edits }, signal }), show,
      (error) => { figures.removeAttribute("aria-busy"); figures.replaceChildren(trouble(error)); lists.replaceChildren(); });
  }

  const box = h("div", { class: "panel", id: "whole" }, lists, h("div", { class: "save" }, save, saved));
  page.whatif.onChange(() => { save.disabled = true; });
  page.whatif.onChange(later(update, 200));
  update();
  return { figures, box };
}

// The page is drawn when this runs: put the live parts into it

page.onReady(() => {
  if (meta.images) {
    page.addSection("ask", "Ask it about an image", h("div", {}, h("div", { class: "chooser" }, dropZone(), exampleChooser()), asking.box),
      { nav: "Ask", lead: "Choose a picture. The answer comes with its doubt, its reasons and the places they come from, and follows every edit you make below.", before: "trust" });
    addEventListener("hashchange", followAsk);
    followAsk();
  }
  const { whatif } = page.sections;
  if (!whatif.querySelector(".bench")) return; // there are no examples to try edits on
  const { figures, box } = editsPanel();
  whatif.querySelector(".bench > .effect").replaceWith(figures);
  whatif.querySelector(".bench").after(box);
  whatif.querySelector(".lead").textContent = `Turn a feature down, off or up, for one class or for all. Each time all ${many(meta.num_examples, "example")} are decided anew: see what that mends and what it breaks, and keep the model if it is worth it.`;
});
