// Edits and what follows from them: logits' = logits - theta_k Phi_kc (1 - factor), over all examples in the page.

const whatif = (() => {
  const C = rows.numClasses;
  const changed = listeners();
  let edits = [];
  let past = [];
  let future = [];
  const before = new Uint16Array(rows.count);
  for (let row = 0; row < rows.count; row++) before[row] = largest(rows.logits, row * C);
  let after = before;

  // The page may hold every mistake but only some of the right answers: then each of these stands for several.
  const standsFor = (() => {
    const right = before.reduce((sum, label, row) => sum + (label === rows.truth[row]), 0);
    const all = meta.num_examples - (rows.count - right);
    const accuracy = report.verdict.accuracy?.value;
    const everyMistake = measured(accuracy) && right > 0 && Math.abs(all / meta.num_examples - accuracy) < 0.002;
    return rows.all ? 1 : everyMistake ? all / right : null;
  })();

  function largest(values, start) {
    let best = 0;
    for (let c = 1; c < C; c++) if (values[start + c] > values[start + best]) best = c;
    return best;
  }

  // Edits of one weight multiply, as they do when they are made one after the other.
  function factorOf(feature, target) {
    let factor = 1;
    for (const edit of edits)
      if (edit.feature === feature && (edit.target === null || edit.target === target)) factor *= edit.factor;
    return factor;
  }

  // For each feature that is touched: what a unit of theta takes from each logit.
  function losses() {
    const touched = [...new Set(edits.map((edit) => edit.feature))].filter((feature) => rows.place.has(feature));
    return touched.map((feature) => {
      const position = rows.place.get(feature);
      const loss = new Float64Array(C);
      for (let c = 0; c < C; c++) loss[c] = rows.phi(position, c) * (1 - factorOf(feature, c));
      return { position, loss };
    });
  }

  function logitsOf(row, lost = losses()) {
    const out = new Float64Array(C);
    for (let c = 0; c < C; c++) out[c] = rows.logits[row * C + c];
    for (const { position, loss } of lost) {
      const theta = rows.theta(row, position);
      if (theta !== 0) for (let c = 0; c < C; c++) out[c] -= theta * loss[c];
    }
    return out;
  }

  function recompute() {
    const lost = losses();
    if (!lost.length) {
      after = before;
      return;
    }
    after = new Uint16Array(before);
    for (let row = 0; row < rows.count; row++) {
      if (lost.some(({ position }) => rows.theta(row, position) !== 0)) after[row] = largest(logitsOf(row, lost), 0);
    }
  }

  const plain = (edit) => ({
    feature: edit.feature,
    target: edit.target ?? null,
    factor: edit.factor,
    note: edit.note ?? "",
  });
  const valid = (edit) =>
    Number.isInteger(edit.feature) &&
    measured(edit.factor) &&
    edit.factor >= 0 &&
    (edit.target === null || (Number.isInteger(edit.target) && edit.target >= 0 && edit.target < C));

  // `step: false` is a slider on its way: shown, but not a step that undo goes back to.
  function apply(next, { step = true } = {}) {
    const list = next.map(plain);
    if (!list.every(valid)) throw new TypeError("an edit is {feature, target or null, factor >= 0, note}");
    const base = edits.settled ?? edits;
    if (step && JSON.stringify(base.map(plain)) === JSON.stringify(list) && base === edits) return; // nothing new to undo
    if (step) {
      past.push(base);
      future = [];
    }
    const settled = step ? null : base;
    edits = list;
    if (settled) Object.defineProperty(edits, "settled", { value: settled });
    recompute();
    changed.call(api.edits);
  }

  function travel(from, to) {
    if (!from.length) return;
    to.push(edits.settled ?? edits);
    edits = from.pop();
    recompute();
    changed.call(api.edits);
  }

  // Set one weight (or a feature in all classes) to a factor; 1 takes the edit away.
  function set(feature, target, factor, { note = null, step = true } = {}) {
    const same = (edit) => edit.feature === feature && edit.target === target;
    const old = edits.find(same);
    const mine = { feature, target, factor, note: note ?? old?.note ?? "" };
    const rest = edits.filter((edit) => !same(edit));
    const at = old ? edits.indexOf(old) : rest.length;
    apply(factor === 1 ? rest : [...rest.slice(0, at), mine, ...rest.slice(at)], { step });
  }

  function effect() {
    const found = { count: rows.count, rightBefore: 0, rightAfter: 0, fixed: [], broken: [], moved: [] };
    for (let row = 0; row < rows.count; row++) {
      const [was, is] = [before[row] === rows.truth[row], after[row] === rows.truth[row]];
      found.rightBefore += was;
      found.rightAfter += is;
      if (before[row] === after[row]) continue;
      (is ? found.fixed : was ? found.broken : found.moved).push(row);
    }
    return found;
  }

  // Each weight alone, switched off. Lowering a logit moves only the answers that it gave, and those to the second best,
  // so one pass over the examples that a class took is all it needs.
  function worthATry(top) {
    const mended = new Float64Array(rows.features.length * C);
    const broken = new Float64Array(rows.features.length * C);
    for (let row = 0; row < rows.count; row++) {
      const [best, start] = [before[row], row * C];
      let second = best === 0 ? 1 : 0;
      for (let c = 0; c < C; c++) if (c !== best && rows.logits[start + c] > rows.logits[start + second]) second = c;
      const [right, gains] = [best === rows.truth[row], second === rows.truth[row]];
      if (!right && !gains) continue;
      const margin = rows.logits[start + best] - rows.logits[start + second];
      for (let position = 0; position < rows.features.length; position++) {
        if (rows.theta(row, position) * rows.phi(position, best) > margin)
          (right ? broken : mended)[position * C + best] += 1;
      }
    }
    const list = Array.from(mended, (gain, at) => ({
      feature: rows.features[Math.floor(at / C)],
      target: at % C,
      fixed: gain,
      broken: broken[at],
    }));
    const net = (one) => one.fixed - one.broken * (standsFor ?? 1);
    return list
      .filter((one) => net(one) > 0)
      .sort((a, b) => net(b) - net(a))
      .slice(0, top);
  }

  const api = {
    get edits() {
      return edits.map(plain);
    },
    get canUndo() {
      return past.length > 0;
    },
    get canRedo() {
      return future.length > 0;
    },
    standsFor,
    apply,
    set,
    effect,
    factorOf,
    worthATry,
    undo: () => travel(past, future),
    redo: () => travel(future, past),
    onChange: changed.add,
    labelOf: (row) => after[row],
    labelBefore: (row) => before[row],
    logitsOf: (row) => Array.from(logitsOf(row)),
    choose: () => {},
  };
  return api;
})();
