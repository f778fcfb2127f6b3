/* A table that is wider than the screen is marked, so that a phone says it can be swiped. */
window.addEventListener("load", () => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) {
    table.classList.toggle("wide", table.scrollWidth > table.clientWidth + 8);
  }
});
