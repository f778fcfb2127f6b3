/* The ledger's table: a click on a column's head sorts by it, words and a verdict choose rows.
   Cells know their column's name, which a phone shows. */
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector(".ledger table");
  const rows = [...table.tBodies[0].rows];
  const verdictOf = (row) => row.cells[0].textContent.trim();
  const verdicts = [...new Set(rows.map(verdictOf))].sort();
  rows.forEach((row) => (row.dataset.verdict = verdictOf(row)));

  const bar = document.createElement("p");
  bar.className = "ledger-bar";
  bar.innerHTML =
    '<label>words <input type="search"></label> <label>verdict <select><option value="">all</option>' +
    verdicts.map((name) => `<option>${name}</option>`).join("") +
    '</select></label> <output></output>';
  document.querySelector(".ledger").prepend(bar);
  const [words, verdict, shown] = bar.querySelectorAll("input, select, output");
  const choose = () => {
    const asked = words.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const fits = asked.every((word) => text.includes(word));
      row.hidden = !(fits && (!verdict.value || verdictOf(row) === verdict.value));
    }
    shown.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} claims`;
  };
  bar.addEventListener("input", choose);
  choose();

  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => rows.forEach((row) => (row.cells[column].dataset.head = head.textContent)));
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const textOf = (row) => row.cells[column].textContent.trim();
      const numberOf = (row) => parseFloat(textOf(row).replace(/^(pooled|<) /, ""));
      const ordered = [...rows].sort((one, two) => {
        if (!textOf(one) !== !textOf(two)) return textOf(one) ? -1 : 1; // what is empty comes last
        const by = numberOf(one) - numberOf(two) || textOf(one).localeCompare(textOf(two));
        return up ? by : -by;
      });
      table.tBodies[0].append(...ordered);
    });
  });

  const opened = document.getElementById(location.hash.slice(1));
  opened?.closest("tr")?.querySelector("details")?.setAttribute("open", "");
});
