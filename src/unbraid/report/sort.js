// Makes the headings of a table sort its rows; without scripts the table stays as it is.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const valueOf = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  const compare = (a, b) => (isNaN(a) || isNaN(b) || a === "" || b === "" ? a.localeCompare(b) : a - b);
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => compare(valueOf(a, column), valueOf(b, column)));
      body.append(...(descending ? rows.reverse() : rows));
    });
  });
}
