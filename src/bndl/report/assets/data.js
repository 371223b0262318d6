// The report's data: JSON from the page, arrays from base64, half floats, and the few questions everyone asks of them.

const report = JSON.parse(document.getElementById("bndl-data").textContent);
const meta = report.meta;

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

// All 65,536 half floats, so that reading one is a look-up (a Float16Array is not everywhere yet).
function halfTable() {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    if (exponent === 31) table[bits] = fraction ? NaN : sign * Infinity;
    else if (exponent === 0) table[bits] = sign * fraction * 2 ** -24;
    else table[bits] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return table;
}

const rows = (() => {
  const raw = report.examples;
  const array = (Type, name) => new Type(bytesOf(raw[name + "_b64"]).buffer);
  const half = halfTable();
  const theta = array(Uint16Array, "theta");
  const features = raw.theta_features;
  const place = new Map(features.map((feature, position) => [feature, position]));
  const phi = new Float32Array(bytesOf(raw.phi.weights_b64).buffer); // F x C
  const numClasses = meta.classes.length;
  return {
    count: raw.count,
    all: raw.all,
    numClasses,
    features,
    place,
    id: array(Uint32Array, "id"),
    label: array(Uint16Array, "label"),
    truth: array(Uint16Array, "truth"),
    runner: array(Uint16Array, "runner"),
    prob: array(Float32Array, "prob"),
    p: array(Float32Array, "p"),
    flip: array(Float32Array, "flip"),
    decile: array(Uint8Array, "decile"),
    certain: array(Uint8Array, "certain"),
    thumb: array(Int32Array, "thumb"),
    logits: array(Float32Array, "logits"),
    bias: raw.bias,
    names: raw.names,
    theta: (row, position) => half[theta[row * features.length + position]],
    phi: (position, target) => phi[position * numClasses + target],
    logit: (row, target) => raw.count && rows.logits[row * numClasses + target],
    wrong: (row) => rows.label[row] !== rows.truth[row],
    name: (row) => (raw.names && raw.names[row] ? raw.names[row] : `example ${rows.id[row]}`),
  };
})();

const className = (index) => {
  const name = meta.classes[index];
  return name === undefined || name === "" ? `class ${index}` : String(name);
};
const featureRecords = new Map(report.features.map((record) => [record.feature, record]));
const featureLabel = (feature) => featureRecords.get(feature)?.label ?? `f${feature}`;
const classRecords = new Map(report.classes.map((record) => [record.index, record]));

// One logit of one example, taken apart with what the page holds: bias + terms + rest = logit, exactly, because the
// rest is what the others leave. `factorOf(feature, target)` scales a term, as an edit does.
function sideOf(row, target, { top = 8, factorOf = null } = {}) {
  const terms = [];
  let logit = rows.logit(row, target);
  rows.features.forEach((feature, position) => {
    const whole = rows.theta(row, position) * rows.phi(position, target);
    if (whole === 0) return;
    const factor = factorOf ? factorOf(feature, target) : 1;
    logit -= whole * (1 - factor);
    if (factor !== 0) terms.push({ feature, value: whole * factor, low: null, high: null });
  });
  terms.sort((a, b) => b.value - a.value);
  const kept = terms.slice(0, top);
  const bias = rows.bias[target];
  const rest = logit - bias - kept.reduce((sum, term) => sum + term.value, 0);
  return { class: target, logit, bias, terms: kept, rest };
}
