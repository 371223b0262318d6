// LIME on demand: started, watched, stopped; once it is done every feature and class of the image is a look-up.

const pause = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });
let runningJob = null; // the one that this page waits for

function stopJob() {
  const job = runningJob;
  runningJob = null;
  if (job?.id) ask(`/api/jobs/${job.id}`, { method: "DELETE" }).catch(() => {});
}

function limePanel(found) {
  stopJob(); // it was about another image, or about other edits
  const terms = [...new Map([...found.predicted.terms, ...found.against.terms].map((term) => [term.feature, term.label]))];
  const what = h("select", { id: "lime-what" },
    terms.map(([feature, label]) => option(`feature=${feature}`, `feature ${label}`)),
    [found.label, found.other].map((index) => option(`target=${index}`, `score of ${page.classes.name(index)}`)));
  const size = h("select", { id: "lime-size" }, option(100, "100: quick"), option(300, "300"), option(1000, "1000: thorough"));
  size.value = "300";
  const meter = h("progress", { id: "lime-progress", max: 1, value: 0, "aria-label": "progress of LIME" });
  const status = h("p", { class: "soft", id: "lime-status", role: "status" });
  const result = h("div", { class: "lime-result" });
  let finished = null;

  async function show() {
    if (finished === null) return;
    try {
      const heat = await ask(`/api/jobs/${finished}/heat?${what.value}`);
      const label = what.selectedOptions[0].textContent;
      result.replaceChildren(picture(heat.picture, `LIME of ${label}`, label), h("div", {},
        h("dl", { class: "facts" },
          fact("R\u00b2", heat.r2 === null ? "it does not vary" : `${fixed(heat.r2, 2)}${heat.r2 < 0.3 ? " \u2013 a straight line hardly fits: do not build on it" : ""}`),
          fact("Stable", heat.stability === null ? "\u2013" : `${fixed(heat.stability, 2)} rank correlation of two halves; ${percent(heat.overlap, 0)} of the ten largest agree`),
          fact("Cost", `${whole(heat.perturbations)} passes over ${whole(heat.parts)} parts`)),
        h("p", { class: "note" }, "Marked are the ten parts whose presence raises it most. One run answers for every feature and class: choose another above.")));
    } catch (error) { result.replaceChildren(trouble(error)); }
  }

  async function watch(job) {
    for (let look = 0; runningJob === job && look < 20000; look++) {
      const now = await ask(`/api/jobs/${job.id}`);
      if (runningJob !== job) return;
      meter.value = now.total ? now.done / now.total : 0;
      status.textContent = now.state === "waiting" ? "Waiting for its turn" : `${whole(now.done)} of ${whole(now.total)} passes`;
      if (now.state === "done") { finished = job.id; return; }
      if (now.state === "failed") throw new Error(now.error);
      if (now.state === "stopped") { status.textContent = "Stopped."; return; }
      await pause(250);
    }
  }

  async function run() {
    const job = { id: null };
    runningJob = job;
    finished = null;
    busy(true);
    result.replaceChildren();
    try {
      const started = await ask("/api/lime", { method: "POST", json: { image: found.image, edits: found.edits, perturbations: Number(size.value) } });
      job.id = started.job;
      if (runningJob !== job) { ask(`/api/jobs/${job.id}`, { method: "DELETE" }).catch(() => {}); return; }
      await watch(job);
    } catch (error) { result.replaceChildren(trouble(error)); }
    if (runningJob === job) runningJob = null;
    busy(false);
    if (finished !== null) { status.textContent = "Done."; show(); }
  }

  const start = button("Run LIME", run, { id: "lime-run" });
  const stop = button("Stop", () => { stopJob(); busy(false); status.textContent = "Stopped."; }, { id: "lime-stop" });
  const busy = (working) => { start.hidden = working; stop.hidden = meter.hidden = !working; if (working) { meter.value = 0; status.textContent = "Starting"; } };
  what.addEventListener("change", show);
  busy(false);
  return h("div", { class: "lime" }, h("h4", {}, "Another witness: LIME"),
    h("p", { class: "note" }, "It hides parts of the image at random and fits a straight line to what happens. Slower and rougher than the maps above, but it knows nothing of the network."),
    h("div", { class: "controls" }, field("Of", what), field("Passes", size), h("div", { class: "buttons" }, start, stop)), meter, status, result);
}
const fact = (name, what) => h("div", {}, h("dt", {}, name), h("dd", {}, what));
