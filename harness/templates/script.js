"use strict";
// Sorting and filtering of tables that are whole without it.

const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b));
}

// What a cell is sorted by; null, which always comes last, for an absent figure.
function keyOf(cell) {
  if (cell.dataset.number !== undefined) return Number(cell.dataset.number);
  if (cell.dataset.text !== undefined) return cell.dataset.text;
  return cell.dataset.absent !== undefined ? null : cell.textContent;
}

function sort(table, column, direction) {
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => [keyOf(row.cells[column]), row]);
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return direction * compare(a, b);
  });
  body.append(...keyed.map(([, row]) => row));
}

function makeSortable(table, say) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    heading.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const rising = heading.getAttribute("aria-sort") !== "ascending";
      for (const other of headings) other.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
      sort(table, column, rising ? 1 : -1);
      say(`Sorted by ${button.textContent}, ${rising ? "ascending" : "descending"}`);
    });
  });
}

function makeFilter(table, controls, say) {
  const input = controls.querySelector('input[type="search"]');
  const count = controls.querySelector("output");
  const rows = [...table.tBodies[0].rows].map((row) => [row, row.textContent.toLowerCase()]);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [row, text] of rows) {
      row.hidden = !words.every((word) => text.includes(word));
      if (!row.hidden) shown += 1;
    }
    count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
  });
  for (const box of controls.querySelectorAll('input[type="checkbox"]')) {
    box.addEventListener("change", () => {
      for (const row of table.rows) row.cells[Number(box.value)].hidden = !box.checked;
      say(`${box.parentElement.textContent.trim()} ${box.checked ? "shown" : "hidden"}`);
    });
    // A reloading browser may remember what was unticked.
    box.checked = true;
  }
  input.value = "";
  controls.hidden = false;
}

const status = document.querySelector("[role=status]");
const say = (text) => { status.textContent = text; };
for (const table of document.querySelectorAll("table[data-sortable]")) makeSortable(table, say);
for (const controls of document.querySelectorAll("[data-filters]")) {
  makeFilter(document.getElementById(controls.dataset.filters), controls, say);
}
