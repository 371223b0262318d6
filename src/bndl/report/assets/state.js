// What the reader has chosen, and the address that says it: #class=3, #compare=3,5, #feature=12, #mistake=0, #decile=9, #example=7.

const routes = Object.create(null); // key -> function of the value, set by the sections

function listeners() {
  const list = [];
  return {
    add: (listener) => {
      list.push(listener);
    },
    call: (...what) => {
      for (const listener of list) listener(...what);
    },
  };
}

const filter = (() => {
  let decile = null;
  const changed = listeners();
  return {
    get decile() {
      return decile;
    },
    onChange: changed.add,
    set(next) {
      const valid = Number.isInteger(next) && next >= 0 && next < report.trust.deciles.length ? next : null;
      if (valid === decile) return;
      decile = valid;
      changed.call();
    },
    keeps: (row) => decile === null || rows.decile[row] === decile,
  };
})();

const ordinal = (decile, count = report.trust.deciles.length) => {
  const [from, to] = [decile, decile + 1].map((edge) => Math.round((100 * edge) / count));
  if (decile === 0) return `the surest ${to}${THIN}%`;
  return decile === count - 1 ? `the least sure ${100 - from}${THIN}%` : `${from}\u2013${to}${THIN}% from the surest`;
};

function bring(node, { focus = true } = {}) {
  if (!node) return;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  node.scrollIntoView({
    block: "start",
    behavior: still || document.visibilityState !== "visible" ? "auto" : "smooth",
  });
  if (!focus) return;
  node.setAttribute("tabindex", "-1");
  node.focus({ preventScroll: true });
  node.classList.add("found");
  setTimeout(() => node.classList.remove("found"), 1600);
}

function follow() {
  for (const part of location.hash.slice(1).replaceAll("%2C", ",").split("&")) {
    const [key, text] = part.split("=");
    if (text === undefined) continue;
    const numbers = text.split(",").map((one) => (/^\d+$/.test(one) ? Number(one) : NaN));
    if (routes[key] && numbers.every(Number.isInteger)) routes[key](...numbers);
  }
}

// The address follows the choice without a jump; the back button then steps through what was looked at.
function address(hash) {
  if (location.hash !== hash) history.pushState(null, "", hash);
}
