"use strict";
(() => {
  const rows = [...document.querySelectorAll("#run-table tbody tr")];
  const cellRows = [...document.querySelectorAll("#cell-table tbody tr")];
  const about = document.getElementById("about");
  const filters = document.querySelector(".filters");
  const headings = Object.fromEntries(
    [...document.querySelectorAll("#run-table tbody tr:first-child [data-measure]")].map((entry) => [
      entry.dataset.measure,
      document.querySelector("#run-table thead tr").cells[entry.cellIndex].textContent,
    ]),
  );
  const runsOf = Map.groupBy ? Map.groupBy(rows, (row) => row.dataset.cell) : group(rows);
  const wordsOf = new Map(cellRows.map((row) => [row.dataset.cell, row.dataset.words]));
  const statesOf = new Map(cellRows.map((row) => [row.dataset.cell, row.querySelector(".short").textContent]));
  const hits = new Map(); // the elements of a cell in all figures, by its number
  let picked = null;

  function group(list) {
    const found = new Map();
    for (const row of list) found.set(row.dataset.cell, [...(found.get(row.dataset.cell) ?? []), row]);
    return found;
  }

  function make(tag, text, name) {
    const element = document.createElement(tag);
    if (text) element.textContent = text;
    if (name) element.className = name;
    return element;
  }

  for (const element of document.querySelectorAll(".scripted")) element.hidden = false;
  for (const svg of document.querySelectorAll(".diagrams .picture svg")) {
    const own = [...svg.querySelectorAll("g[id*='-cell-']")];
    if (!own.length) continue;
    svg.removeAttribute("aria-hidden");
    svg.parentElement.setAttribute("role", "group");
    own.forEach((hit, index) => {
      const cell = hit.id.match(/-cell-(\d+)/)[1];
      for (const path of hit.querySelectorAll("path")) path.removeAttribute("style");
      hit.classList.add("cell");
      hit.dataset.cell = cell;
      hit.setAttribute("role", "button");
      hit.setAttribute("aria-pressed", "false");
      hit.setAttribute("aria-label", `${wordsOf.get(cell)}: ${statesOf.get(cell)}`);
      hit.setAttribute("tabindex", index ? "-1" : "0");
      hits.set(cell, [...(hits.get(cell) ?? []), hit]);
      hit.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && show(hit));
      hit.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && leave());
      hit.addEventListener("focus", () => {
        own.forEach((other) => other.setAttribute("tabindex", other === hit ? "0" : "-1"));
        show(hit);
      });
      hit.addEventListener("blur", leave);
      hit.addEventListener("click", () => pick(picked === cell ? null : cell, hit));
      hit.addEventListener("keydown", (event) => {
        const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
        if (event.key === "Enter" || event.key === " ") pick(picked === cell ? null : cell, hit);
        else if (way) nearest(hit, own, way)?.focus();
        else return;
        event.preventDefault();
      });
    });
  }

  function centre(element) {
    const box = element.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  }

  /** The nearest cell in a direction; sideways distance counts twice. */
  function nearest(from, all, [across, down]) {
    const [x, y] = centre(from);
    let best = null;
    let least = Infinity;
    for (const other of all) {
      const [dx, dy] = [centre(other)[0] - x, centre(other)[1] - y];
      const ahead = dx * across + dy * down;
      const far = ahead + 2 * Math.abs(across ? dy : dx);
      if (ahead > 1 && far < least) [best, least] = [other, far];
    }
    return best;
  }

  function leave() {
    if (picked === null) about.hidden = true;
    else if (about.dataset.cell !== picked) show(hits.get(picked)[0], false);
  }

  function show(hit, move = true) {
    const cell = hit.dataset.cell;
    about.dataset.cell = cell;
    about.classList.toggle("pinned", cell === picked);
    about.replaceChildren(make("h2", wordsOf.get(cell)));
    if (cell === picked) {
      const close = make("button", "×", "close");
      close.setAttribute("aria-label", "Unmark the cell");
      close.addEventListener("click", () => pick(null, hit));
      about.append(close);
    }
    const list = make("ul");
    for (const row of runsOf.get(cell) ?? []) {
      const entry = make("li");
      entry.append(`seed ${row.dataset.seed} `, row.querySelector(".phase").cloneNode(true));
      const status = row.querySelector(".status").textContent;
      if (![row.dataset.state, "done"].includes(status)) entry.append(` ${status}`);
      entry.append(" ", make("span", row.querySelector("code").textContent, "soft"));
      const facts = make("div", "", "facts");
      for (const measure of ["id_accuracy", "ood_accuracy", "symmetric_accuracy", "commutativity", "stable_rank"]) {
        const value = row.querySelector(`[data-measure="${measure}"]`)?.textContent.trim();
        if (value && value !== "–") facts.append(make("span", `${headings[measure].replace(" accuracy", "")} ${value}`));
      }
      entry.append(facts);
      const reason = row.querySelector(".reason").textContent;
      if (reason) entry.append(make("p", reason, "soft"));
      list.append(entry);
    }
    about.append(list);
    about.hidden = false;
    if (move) place(hit);
  }

  /** Beside the cell if there is room, else at the end of the window away from it. */
  function place(hit) {
    const [box, own, gap] = [hit.getBoundingClientRect(), about.getBoundingClientRect(), 8];
    const [wide, high] = [document.documentElement.clientWidth, window.innerHeight];
    const left = [box.right + gap, box.left - gap - own.width].find((x) => x >= gap && x + own.width <= wide - gap);
    const below = box.top + box.height / 2 < high / 2;
    const top = left === undefined ? (below ? high - own.height - gap : gap) : box.top;
    about.style.left = `${left ?? Math.max(gap / 2, wide - own.width - gap)}px`;
    about.style.top = `${Math.max(gap, Math.min(top, high - own.height - gap))}px`;
  }

  function pick(cell, hit) {
    picked = cell;
    for (const [number, places] of hits) {
      for (const other of places) {
        other.classList.toggle("picked", number === cell);
        other.setAttribute("aria-pressed", String(number === cell));
      }
    }
    for (const row of [...rows, ...cellRows]) row.classList.toggle("picked", row.dataset.cell === cell);
    filters.elements.picked.disabled = cell === null;
    if (cell === null) {
      filters.elements.picked.checked = false;
      about.hidden = true;
    } else show(hit);
    filter();
  }

  function filter() {
    const { state, status, picked: only, shown } = filters.elements;
    let n = 0;
    for (const row of rows) {
      const kept =
        (!state.value || row.dataset.state === state.value) &&
        (!status.value || row.dataset.status === status.value) &&
        (!only.checked || row.dataset.cell === picked);
      row.hidden = !kept;
      n += kept;
    }
    shown.value = `${n} of ${rows.length} runs`;
  }

  /** Numbers first and by size, then words, then what has no value. */
  function order(one, other) {
    const [a, b] = [one, other].map((text) => parseFloat(text.replaceAll(",", "")));
    if (isNaN(a) !== isNaN(b)) return isNaN(a) - isNaN(b);
    return isNaN(a) ? (one === "–") - (other === "–") || one.localeCompare(other) : a - b;
  }

  for (const head of document.querySelectorAll("#run-table thead th, #cell-table thead th")) {
    const button = make("button", head.textContent, "sort");
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const body = head.closest("table").tBodies[0];
      const text = (row) => row.cells[head.cellIndex].textContent.trim();
      const sorted = [...body.rows].sort((a, b) => (up ? 1 : -1) * order(text(a), text(b)));
      body.append(...sorted);
    });
  }

  filters.addEventListener("input", filter);
  filters.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const had = picked === null ? null : hits.get(picked)[0];
    if (had) pick(null, had);
    about.hidden = true;
  });
})();
