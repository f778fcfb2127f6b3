"use strict";
(() => {
  const names = [...document.querySelectorAll(".runs-legend button")];
  const shown = (run) => names[run].getAttribute("aria-pressed") === "true";
  for (const element of document.querySelectorAll(".scripted")) element.hidden = false;

  for (const [run, button] of names.entries()) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(!shown(run)));
      for (const curve of document.querySelectorAll(`.compared [id$="-curve-${run}"]`)) {
        curve.style.display = shown(run) ? "" : "none";
      }
    });
  }

  for (const figure of document.querySelectorAll(".compared")) {
    const [svg, readout] = [figure.querySelector("svg"), figure.querySelector(".readout")];
    const { left, right, low, high, runs } = JSON.parse(figure.dataset.curves);
    const guide = document.createElementNS(svg.namespaceURI, "line");
    guide.setAttribute("class", "guide");
    svg.append(guide);
    const view = svg.viewBox.baseVal;

    /** The last row at or before a step, else the first. */
    const rowAt = (rows, step) => rows.findLast(([at]) => at <= step) ?? rows[0];

    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const share = ((event.clientX - box.left) / box.width - left) / (right - left);
      const near = low + Math.min(1, Math.max(0, share)) * (high - low);
      const steps = runs.flatMap((rows, run) => (shown(run) ? rows.map(([at]) => at) : []));
      if (!steps.length) return;
      const step = steps.reduce((best, at) => (Math.abs(at - near) < Math.abs(best - near) ? at : best));
      const x = view.x + view.width * (left + ((step - low) / (high - low)) * (right - left));
      for (const [name, value] of [["x1", x], ["x2", x], ["y1", view.y], ["y2", view.y + view.height]]) {
        guide.setAttribute(name, value);
      }
      guide.style.visibility = "visible";
      const values = runs.flatMap((rows, run) => {
        if (!shown(run) || !rows.length) return [];
        const entry = document.createElement("span");
        entry.append(names[run].querySelector(".swatch").cloneNode(), rowAt(rows, step)[1].toPrecision(3));
        entry.title = names[run].firstChild.nextSibling.textContent.trim();
        return [entry];
      });
      readout.replaceChildren(`step ${step}: `, ...values);
    });
    svg.addEventListener("pointerleave", () => {
      guide.style.visibility = "hidden";
      readout.replaceChildren();
    });
  }
})();
