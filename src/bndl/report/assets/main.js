// Head, navigation and theme; then the sections in order; then the hook for a live page.

function showHead() {
  const facts = [
    meta.data,
    meta.backbone,
    `${many(meta.num_examples, "example")}`,
    `${many(meta.classes.length, "class", "classes")}`,
    String(meta.created ?? "").slice(0, 10),
  ];
  fill(byId("head"), {}, [
    h("p", { class: "over" }, meta.live ? "BNDL explorer" : "BNDL report"),
    h("h1", {}, h("bdi", {}, meta.title || "BNDL report")),
    h(
      "p",
      { class: "soft" },
      facts.filter(Boolean).map((text, i) => [i ? " \u00b7 " : "", h("bdi", {}, text)]),
    ),
    (meta.about ?? []).map((text) => h("p", { class: "about" }, h("bdi", {}, text))),
  ]);
  byId("foot").append(
    h(
      "p",
      { class: "soft" },
      `Made by bndl ${meta.bndl ?? ""}. This file is complete: it asks no server for anything.`,
    ),
  );
  if (meta.live) byId("foot").firstChild.textContent = `bndl ${meta.bndl ?? ""}, on this machine.`;
}

const inSight = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      const id = entry.target.id === "head" ? "verdict" : entry.target.id;
      for (const link of byId("nav").children) {
        const here = link.getAttribute("href") === `#${id}`;
        if (here) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
        if (here) byId("nav").scrollTo({ left: link.offsetLeft - byId("nav").clientWidth / 2 + link.clientWidth / 2 });
      }
    }
  },
  { rootMargin: "-20% 0px -75% 0px" },
);

function addToNav(section, before = null) {
  byId("nav").insertBefore(
    h("a", { href: `#${section.id}` }, section.dataset.nav),
    before && byId("nav").querySelector(`[href="#${before}"]`),
  );
  inSight.observe(section);
}

function addSection(id, title, element, { nav = title, lead = null, before = "method" } = {}) {
  const section = h(
    "section",
    { id, "aria-labelledby": `${id}-title`, data: { nav } },
    h("h2", { id: `${id}-title` }, title),
    lead && h("p", { class: "lead" }, lead),
    element,
  );
  byId("main").insertBefore(section, byId(before));
  addToNav(section, before);
  return section;
}

function useTheme() {
  const themes = ["auto", "light", "dark"];
  const stored = () => {
    try {
      return localStorage.getItem("bndl-theme");
    } catch {
      return null;
    }
  };
  const keep = (theme) => {
    try {
      localStorage.setItem("bndl-theme", theme);
    } catch {
      /* a page on disk may have no storage */
    }
  };
  let theme = themes.includes(stored()) ? stored() : "auto";
  const set = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    byId("theme").textContent = { auto: "\u25d0 Auto", light: "\u25cb Light", dark: "\u25cf Dark" }[theme];
    byId("theme").setAttribute("aria-label", `colours: ${theme}; change`);
  };
  byId("theme").addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % 3];
    keep(theme);
    set();
  });
  set();
}

useTheme();
showHead();
showVerdict();
showTrust();
showClasses();
showFeatures();
showMistakes();
showWhatif();
showFaithfulness();
showMethod();
for (const section of document.querySelectorAll("main > section")) addToNav(section);
inSight.observe(byId("head"));
window.addEventListener("hashchange", follow);
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='#']");
  if (link && link.getAttribute("href") === location.hash) follow(); // the same address again is no change of address
});

// What a live page builds on. Everything takes and gives plain data or elements.
window.bndl = {
  data: report,
  rows,
  sections: Object.fromEntries(
    [...document.querySelectorAll("main > section")].map((section) => [section.id, section]),
  ),
  onReady: (ready) => ready(window.bndl), // extra scripts run after this one: the page is drawn
  addSection(...what) {
    return (window.bndl.sections[what[0]] = addSection(...what));
  },
  showWaterfall: (container, side, options) => container.replaceChildren(waterfall(side, options)),
  showWaterfalls: (container, first, second, titles) =>
    container.replaceChildren(pairOfWaterfalls(first, second, titles)),
  classes: { count: meta.classes.length, name: className, link: classLink, record: (index) => classRecords.get(index) },
  features: { label: featureLabel, link: featureLink, record: (feature) => featureRecords.get(feature) },
  format: { percent, surely, short, fixed, whole, pValue },
  make: { h, s, button, field, option, thumb, chart, curves, legend, exampleTile },
  filter,
  whatif,
  announce,
  showExample,
};
if (location.hash.includes("=")) requestAnimationFrame(follow);
