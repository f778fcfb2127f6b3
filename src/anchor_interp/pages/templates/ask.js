const form = document.getElementById("asked");
const { key, place, first, second, noise } = form.elements;
const [hideKey, hideSecond] = [form.elements["hide-key"], form.elements["hide-second"]];
const models = DATA.models.map((data) => ({ ...unpack(data), map: bytesOf(data.map) }));
const articles = [...document.querySelectorAll(".model")];
const values = new Int16Array(bytesOf(DATA.values).buffer); // [pair, function, key], -1: no such function
const [nKeys, nPlaces, nFunctions] = [key.max - key.min + 1, +place.max + 1, DATA.functions.length];
const dots = { key: "#F0E442", a1: "#56B4E9", a2: "#009E73", last: "#CC79A7" };
let others = DATA.noise;

function make(tag, attributes, ...content) {
  const element = document.createElementNS(`http://www.w3.org/${tag[0] === "/" ? "2000/svg" : "1999/xhtml"}`, tag.replace("/", ""));
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...content);
  return element;
}

const pairOf = (a, b) => DATA.pairs.findIndex(([one, two]) => one === a && two === b);
const valueOf = (pair, name) => values[(pair * nFunctions + name) * nKeys + (key.value - DATA.low)];

/** The first function that gives the answer; the last one is none. */
function functionOf(pair, answer) {
  const at = DATA.functions.findIndex((_, name) => valueOf(pair, name) === answer);
  return DATA.functions[at < 0 ? nFunctions - 1 : at];
}

const swatch = (colour) => make("span", { class: "swatch", style: `background: ${colour}` });

function sequence(a, b) {
  const tokens = [...others];
  tokens.splice(+place.value, 3, +key.value, a, b);
  return tokens;
}

function roleAt(position, n) {
  const named = ["key", "a1", "a2"][position - place.value];
  return named ?? (position === n - 1 ? "last" : "");
}

/** The attention that reaches the answer: each edge times what is read of where it ends. */
function routeOf(patterns, n) {
  let reach = Array.from({ length: n }, (_, position) => +(position === n - 1));
  return patterns.toReversed().map((edges) => {
    const used = edges.map((weight, edge) => weight * reach[Math.floor(edge / n)]);
    reach = reach.map((own, at) => Math.max(own, ...reach.map((_, query) => used[query * n + at])));
    return used;
  }).reverse();
}

function drawRoute(svg, tokens, patterns, answer) {
  const [n, levels, words] = [tokens.length, patterns.length, []];
  const [x, y] = [(at) => 55 + 38 * at, (level) => 30 + 62 * (levels - level)];
  svg.setAttribute("viewBox", `0 0 ${x(n - 1) + 20} ${y(0) + 48}`);
  svg.replaceChildren(make("/text", { x: x(n - 1), y: 16, "font-weight": 700 }, String(answer)));
  routeOf(patterns, n).forEach((used, layer) => {
    svg.append(make("/text", { x: 18, y: (y(layer) + y(layer + 1)) / 2 + 4 }, `L${layer}`));
    used.forEach((weight, edge) => {
      const [query, from] = [Math.floor(edge / n), edge % n];
      if (weight < 0.04 || query === from) return;
      const ends = { x1: x(from), y1: y(layer) - 8, x2: x(query), y2: y(layer + 1) + 8 };
      const stroke = { stroke: "#D55E00", "stroke-width": 1 + 5 * weight, "stroke-opacity": 0.25 + 0.75 * weight };
      svg.append(make("/line", { ...ends, ...stroke }));
      words.push(`layer ${layer}, position ${query} (${tokens[query]}) reads position ${from} (${tokens[from]}): ${weight.toFixed(2)}`);
    });
  });
  for (let level = 0; level <= levels; level++) {
    tokens.forEach((_, at) => {
      const fill = dots[roleAt(at, n)] ?? "none";
      svg.append(make("/circle", { cx: x(at), cy: y(level), r: 5, fill, stroke: "currentColor" }));
    });
  }
  tokens.forEach((token, at) => {
    svg.append(make("/text", { x: x(at), y: y(0) + 24 }, String(token)));
    svg.append(make("/text", { x: x(at), y: y(0) + 40 }, roleAt(at, n)));
  });
  svg.append(make("/text", { x: 18, y: y(0) + 24 }, "token"));
  svg.setAttribute("aria-label", `Route: ${words.join("; ") || "nothing of other positions"}.`);
}

function drawMap(canvas, map, pair) {
  const [drawing, held] = [canvas.getContext("2d"), new Set()];
  drawing.clearRect(0, 0, canvas.width, canvas.height);
  const at = (x, p) => map[(pair * nKeys + x) * nPlaces + p];
  for (let x = 0; x < nKeys; x++) {
    for (let p = 0; p < nPlaces; p++) {
      held.add(at(x, p));
      drawing.fillStyle = DATA.functions[at(x, p)].colour;
      drawing.fillRect(x, p, 1, 1);
    }
  }
  const here = DATA.functions[at(key.value - DATA.low, +place.value)].name;
  canvas.setAttribute("aria-label", `Map of answers to ${DATA.pairs[pair].join(", ")}; in this sequence's cell: ${here}.`);
  const [width, height] = [canvas.clientWidth / nKeys, canvas.clientHeight / nPlaces];
  const corner = [(key.value - DATA.low) * width + canvas.offsetLeft - 2, place.value * height + canvas.offsetTop - 2];
  canvas.nextElementSibling.style = `left: ${corner[0]}px; top: ${corner[1]}px; width: ${width}px; height: ${height}px`;
  return held;
}

function answerOf(model, tokens, hidden) {
  const { logits, patterns } = forward(model, tokens, hidden);
  return { answer: logits.indexOf(Math.max(...logits)), patterns };
}

function update() {
  const [a, b, at] = [+first.value, +second.value, +place.value];
  const [pair, tokens, held] = [pairOf(a, b), sequence(a, b), new Set()];
  document.getElementById("key-shown").textContent = key.value;
  document.getElementById("place-shown").textContent = at;
  hideSecond.disabled = at + 2 === tokens.length - 1; // there the answer is read
  const hidden = [...(hideKey.checked ? [at] : []), ...(hideSecond.checked && !hideSecond.disabled ? [at + 2] : [])];
  const words = { key: "key", a1: "anchor 1", a2: "anchor 2", last: "last", "": "noise" };
  document.getElementById("tokens").replaceChildren(...tokens.map((token, position) => {
    const [role, cut] = [roleAt(position, tokens.length), hidden.includes(position)];
    const label = cut ? `${words[role]}, hidden` : words[role];
    return make("li", { class: `${role || "noise"}${cut ? " cut" : ""}` }, make("b", {}, String(token)), make("span", {}, label));
  }));
  const isTest = key.value % tokens.length === at;
  const seen = { unseen: "Training leaves this pair out.", overridden: "Training shows this pair with an exception to the rule." };
  document.getElementById("asked-pair").textContent =
    `${seen[DATA.roles[pair]] ?? "Training shows this pair with the rule."} At this place the key is ${isTest ? "a test key, which training leaves out" : "a training key"}.`;
  const [rule, other] = [valueOf(pair, 0), DATA.other < 0 ? -1 : valueOf(pair, DATA.other)];
  const said = models.map((model, index) => {
    const part = (name) => articles[index].querySelector(`[data-part="${name}"]`);
    const { answer, patterns } = answerOf(model, tokens, hidden);
    const found = functionOf(pair, answer);
    part("answer").replaceChildren(swatch(found.colour), make("b", {}, String(answer)), `, ${found.name.replace(/^\(/, "as for (")}`);
    part("rule").textContent = rule;
    part("other-row").hidden = other < 0;
    part("other").textContent = other;
    part("swapped").textContent = answerOf(model, sequence(b, a), hidden).answer;
    drawRoute(articles[index].querySelector("svg"), tokens, patterns, answer);
    drawMap(articles[index].querySelector("canvas"), model.map, pair).forEach((name) => held.add(name));
    return `${DATA.models[index].name} answers ${answer}`;
  });
  document.getElementById("said").textContent = `(${a}, ${b}) at ${key.value}: ${said.join(", ")}; the rule gives ${rule}.`;
  const entries = [...held].sort((one, two) => one - two).map((name) => DATA.functions[name]);
  document.getElementById("legend").replaceChildren(
    ...entries.map(({ name, colour }) => make("li", {}, swatch(colour), name)),
  );
}

noise.addEventListener("click", () => {
  others = others.map(() => DATA.low + Math.floor(Math.random() * nKeys));
  update();
});
for (const canvas of document.querySelectorAll(".model canvas")) {
  canvas.addEventListener("click", ({ offsetX, offsetY }) => {
    key.value = DATA.low + Math.floor((offsetX / canvas.clientWidth) * nKeys);
    place.value = Math.floor((offsetY / canvas.clientHeight) * nPlaces);
    update();
  });
}
form.addEventListener("input", update);
form.addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("resize", update);
const start = DATA.pairs[Math.max(0, DATA.roles.lastIndexOf("unseen"))];
[key.value, place.value, first.value, second.value] = [DATA.start.key, DATA.start.place, ...start];
update();
