// Method and limits: the words, how it was made, what it cannot tell.

const GLOSSARY = [
  ["Feature (f12)", "One output of the backbone, never negative. Its activation is called theta."],
  ["Weight", "What one unit of a feature adds to the logit of a class, never negative. Called Phi."],
  [
    "Logit",
    "The score of a class: its bias plus the sum of theta times Phi over the features. The largest logit is the answer; that sum is what every staircase shows.",
  ],
  [
    "Certain",
    () => `The two best classes were compared over 20 draws from the posterior: certain when p \u2264 ${meta.level}.`,
  ],
  [
    "Order would flip",
    "The probability that a draw from the posterior puts the runner-up before the answer. It sorts the tenths.",
  ],
  [
    "PAvPU",
    "The share of answers that are certain and right or uncertain and wrong. Calling everything certain already scores the accuracy, so only what lies above it counts.",
  ],
  ["ECE, NLL", "Expected calibration error, and negative log likelihood in nats."],
  ["Weights in use", "The share of the weights above zero, over everything the decision needs."],
  [
    "LIME",
    "A linear model of one feature's activation, fitted to images with parts covered. R\u00b2 says how well it fits; below 0.5 do not believe it.",
  ],
];

function showMethod() {
  const facts = [
    ["Run", meta.run],
    ["Data", meta.data],
    ["Backbone", meta.backbone],
    [
      "Features",
      `${whole(meta.num_features)}, ${whole(meta.num_used)} with a weight${meta.signed ? "; each feature of either sign is split in two (f12 and f12-)" : ""}`,
    ],
    ["Examples", `${whole(meta.num_examples)}, ${rows.all ? "all" : whole(rows.count)} of them in this page`],
    ["Made", `${meta.created} by bndl ${meta.bndl}`],
  ];
  byId("method").append(
    h(
      "div",
      { class: "halves even" },
      h(
        "div",
        {},
        h("h3", {}, "The words"),
        h(
          "dl",
          { class: "words" },
          GLOSSARY.map(([name, text]) => [h("dt", {}, name), h("dd", {}, typeof text === "function" ? text() : text)]),
        ),
      ),
      h(
        "div",
        {},
        h("h3", {}, "Limits"),
        h(
          "ul",
          { class: "plain" },
          (report.method?.limits ?? []).map((limit) => h("li", {}, h("bdi", {}, limit))),
        ),
        h("h3", {}, "How it was made"),
        h(
          "dl",
          { class: "facts" },
          facts
            .filter(([, text]) => text !== null && text !== undefined && text !== "")
            .map(([name, text]) => fact(name, h("bdi", {}, String(text)))),
        ),
        h("h3", {}, "Keys"),
        h(
          "p",
          { class: "soft" },
          "Tab walks through everything. Arrow keys move between bars and between mistakes, Enter chooses, Esc closes an example. The address keeps the place you look at (a class, feature, mistake, example or tenth), not the edits you make: send it along with the file.",
        ),
      ),
    ),
  );
}
