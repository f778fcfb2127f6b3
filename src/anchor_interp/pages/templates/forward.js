"use strict";
/* The forward pass of this package's transformers. Matrices are flat, row by row; x is [n, width]. */

/** The value of a half-precision number, given as its 16 bits. */
function half(bits) {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const size = exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction;
  return bits >> 15 ? -size : size;
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

/** A model as pages hold it, with its weights by name. */
function unpack({ shape, sizes, halves, weights }) {
  const bytes = bytesOf(weights).buffer;
  const values = halves ? Float32Array.from(new Uint16Array(bytes), half) : new Float32Array(bytes);
  let at = 0;
  return { shape, weights: Object.fromEntries(sizes.map(([name, size]) => [name, values.subarray(at, (at += size))])) };
}

/** x w + bias. */
function affine(x, w, bias, n) {
  const [width, inputs] = [bias.length, x.length / n];
  const out = new Float64Array(n * width);
  for (let row = 0; row < n; row++) {
    out.set(bias, row * width);
    for (let k = 0; k < inputs; k++) {
      const value = x[row * inputs + k];
      if (value) for (let j = 0; j < width; j++) out[row * width + j] += value * w[k * width + j];
    }
  }
  return out;
}

function layerNorm(x, gain, bias, eps) {
  const [width, out] = [gain.length, new Float64Array(x.length)];
  for (let start = 0; start < x.length; start += width) {
    const row = x.subarray(start, start + width);
    const mean = row.reduce((sum, value) => sum + value, 0) / width;
    const scale = Math.sqrt(row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / width + eps);
    for (let j = 0; j < width; j++) out[start + j] = ((row[j] - mean) / scale) * gain[j] + bias[j];
  }
  return out;
}

/** The exact GELU; the error function is Abramowitz and Stegun's 7.1.26, right to 1.5e-7. */
function gelu(x) {
  const [z, t] = [Math.abs(x) / Math.SQRT2, 1 / (1 + (0.3275911 * Math.abs(x)) / Math.SQRT2)];
  const tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  const erf = Math.sign(x) * (1 - tail * Math.exp(-z * z));
  return (x * (1 + erf)) / 2;
}

/** Causal attention [query, key] of one head; no later position reads a hidden one. */
function pattern(q, k, n, scale, hidden) {
  const [width, out] = [q.length / n, new Float64Array(n * n)];
  for (let query = 0; query < n; query++) {
    const row = out.subarray(query * n, query * n + query + 1);
    for (let key = 0; key <= query; key++) {
      for (let j = 0; j < width; j++) row[key] += (q[query * width + j] * k[key * width + j]) / scale;
    }
    const most = Math.max(...row);
    row.forEach((score, key) => (row[key] = Math.exp(score - most)));
    const total = row.reduce((sum, value) => sum + value, 0);
    row.forEach((value, key) => (row[key] = key < query && hidden.includes(key) ? 0 : value / total));
  }
  return out;
}

/** What attention adds to x [n, d_model], and its patterns' mean over heads. */
function attention(x, part, shape, n, hidden) {
  const { d_model, d_head, n_heads } = shape;
  const mean = new Float64Array(n * n);
  let out = affine(new Float64Array(n), [], part("attn.b_O"), n);
  for (let head = 0; head < n_heads; head++) {
    const of = (name, size) => part(name).subarray(head * size, (head + 1) * size);
    const [q, k, v] = ["Q", "K", "V"].map((letter) =>
      affine(x, of(`attn.W_${letter}`, d_model * d_head), of(`attn.b_${letter}`, d_head), n),
    );
    const edges = pattern(q, k, n, shape.attn_scale, hidden);
    edges.forEach((weight, edge) => (mean[edge] += weight / n_heads));
    const z = affine(edges, v, new Float64Array(d_head), n);
    const added = affine(z, of("attn.W_O", d_head * d_model), new Float64Array(d_model), n);
    out = out.map((value, j) => value + added[j]);
  }
  return [out, mean];
}

/** The logits at the last position, and the attention [layer][query * n + key]. */
function forward({ shape, weights }, tokens, hidden = []) {
  const [n, d, pre] = [tokens.length, shape.d_model, shape.normalization === "pre"];
  const activation = shape.act_fn === "gelu" ? gelu : (value) => Math.max(0, value);
  let x = new Float64Array(n * d).map(
    (_, at) => weights["embed.W_E"][tokens[Math.floor(at / d)] * d + (at % d)] + weights["pos_embed.W_pos"][at],
  );
  const patterns = [];
  for (let layer = 0; layer < shape.n_layers; layer++) {
    const part = (name) => weights[`blocks.${layer}.${name}`];
    const norm = (name, value) => layerNorm(value, part(`${name}.w`), part(`${name}.b`), shape.eps);
    const add = (name, value) => {
      const sum = x.map((before, at) => before + value[at]);
      return pre ? sum : norm(name, sum);
    };
    const [read, edges] = attention(pre ? norm("ln1", x) : x, part, shape, n, hidden);
    x = add("ln1", read);
    const inside = affine(pre ? norm("ln2", x) : x, part("mlp.W_in"), part("mlp.b_in"), n).map(activation);
    x = add("ln2", affine(inside, part("mlp.W_out"), part("mlp.b_out"), n));
    patterns.push(edges);
  }
  let last = x.subarray((n - 1) * d);
  if (pre) last = layerNorm(last, weights["ln_final.w"], weights["ln_final.b"], shape.eps);
  return { logits: affine(last, weights["unembed.W_U"], weights["unembed.b_U"], 1), patterns };
}
