// A click on the heading of a column, or Enter on it, sorts the rows of each group of a table by
// that column: the largest number or the first word, then the other way round. Gaps stay last.
(() => {
  const number = text => parseFloat(text.replaceAll(",", ""));
  const order = (a, b, sign) => {
    const [x, y] = [number(a), number(b)], [hasX, hasY] = [!isNaN(x), !isNaN(y)];
    return hasX && hasY ? sign * (y - x) : hasX || hasY ? hasY - hasX : sign * a.localeCompare(b);
  };
  // The column of each cell: cells may span columns, and a heading may span rows.
  const columnOf = cell => {
    const [row, below] = [cell.parentNode, cell.parentNode.previousElementSibling];
    const skipped = below && below.cells[0].rowSpan > 1 ? 1 : 0;
    return skipped + [...row.cells].slice(0, cell.cellIndex).reduce((sum, left) => sum + left.colSpan, 0);
  };
  const textAt = (row, column) => {
    for (const cell of row.cells)
      if ((column -= cell.colSpan) < 0) return (cell.firstChild?.textContent ?? "").trim();
    return "";
  };
  function sort(event) {
    if (event.type === "keydown" && event.key !== "Enter") return;
    const heading = event.target.closest("thead th");
    if (!heading || heading.colSpan > 1 || !heading.textContent) return;
    const table = heading.closest("table"), column = columnOf(heading);
    const isAgain = heading.ariaSort === "descending";
    for (const other of table.querySelectorAll("thead th")) other.ariaSort = null;
    heading.ariaSort = isAgain ? "ascending" : "descending";
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter(row => !row.classList.contains("group"));
      rows.sort((a, b) => order(textAt(a, column), textAt(b, column), isAgain ? -1 : 1));
      body.append(...rows);
    }
  }
  document.addEventListener("click", sort);
  document.addEventListener("keydown", sort);
  for (const heading of document.querySelectorAll("thead th")) if (heading.colSpan < 2) heading.tabIndex = 0;
})();
