"use strict";
// Tables are sorted by the column whose heading is clicked; figures by their value, the rest by their text.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  const value = (row, at) => {
    const cell = row.cells[at];
    const text = cell.dataset.v ?? cell.textContent;
    const number = Number.parseFloat(text);
    return Number.isNaN(number) ? text : number;
  };
  headings.forEach((heading, at) => {
    heading.tabIndex = 0;
    const sort = () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const [x, y] = [value(a, at), value(b, at)];
        const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return up ? order : -order;
      });
      table.tBodies[0].append(...rows);
    };
    heading.addEventListener("click", sort);
    heading.addEventListener("keydown", (event) => event.key === "Enter" && sort());
  });
}
// On paper everything is open.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((all) => { all.open = true; }));
