"use strict";
// A click on a heading sorts its table: rising, falling, and back as it was.

const FACTORS = {
  "": 1, "%": 1, "×": 1, x: 1, of: 1,
  ns: 1e-9, µs: 1e-6, μs: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600,
  B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40,
};
// a number, its unit, and nothing more but what stands apart: "0.919 (0.905 to 0.933)", "12.3 ms", "3 of 4"
const NUMBER = /^[~<>≤≥]?\s*([+−-]?\d[\d,]*(?:\.\d+)?(?:e[+−-]?\d+)?)\s*([^\s\d(),;.:/–-]*)(?=$|[\s(;])/i;
const NEXT = { null: "ascending", ascending: "descending", descending: null };
const ABSENT = ["", "–", "-", "not measured"];

// What a cell is sorted by: null where it has no value, else a number or its text.
function sortKey(text) {
  const shown = text.trim();
  if (ABSENT.includes(shown)) return null;
  const [, digits, unit] = NUMBER.exec(shown) ?? [];
  if (digits === undefined || !Object.hasOwn(FACTORS, unit)) return shown;
  return Number(digits.replaceAll(",", "").replaceAll("−", "-")) * FACTORS[unit];
}

// Cells without a value come last in both directions, numbers before texts.
function compareKeys(left, right, direction) {
  if (left === null || right === null) return (left === null) - (right === null);
  if (typeof left !== typeof right) return direction * (typeof left === "number" ? -1 : 1);
  return direction * (typeof left === "number" ? left - right : left.localeCompare(right, "en", { numeric: true }));
}

function makeSortable(table) {
  const body = table.tBodies[0];
  if (!body || body.rows.length < 2) return;
  const original = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    if (!heading.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const order = NEXT[heading.getAttribute("aria-sort")];
      headings.forEach((each) => each.removeAttribute("aria-sort"));
      let rows = original;
      if (order !== null) {
        heading.setAttribute("aria-sort", order);
        const keys = new Map(original.map((row) => [row, sortKey(row.cells[column].textContent)]));
        const direction = order === "ascending" ? 1 : -1;
        rows = [...original].sort((a, b) => compareKeys(keys.get(a), keys.get(b), direction));
      }
      body.append(...rows);
    });
  });
}

document.querySelectorAll("table").forEach(makeSortable);
