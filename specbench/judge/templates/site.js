"use strict";
(() => {
  const data = JSON.parse(document.getElementById("site-data").textContent);
  const find = id => document.getElementById(id);
  const selects = [...document.querySelectorAll("#browser [data-field]")];
  const MOST = 300, ALL = "";
  const shown = {
    speedup: value => `${value.toFixed(2)}x`,
    mat: value => value.toFixed(2),
    tokens_per_s: value => value >= 100 ? value.toFixed(0) : value.toPrecision(3),
  };
  const orders = { "as measured": null, speedup: "speedup", "tokens/s": "tokens_per_s", MAT: "mat" };

  const make = (tag, parent, text = "", name = "") => {
    const element = parent.appendChild(document.createElement(tag));
    element.textContent = text;
    if (name) element.className = name;
    return element;
  };
  const number = (parent, values, kind, isBest = false) => {
    const cell = make("td", parent);
    if (!values) { cell.textContent = "–"; return cell; }
    make(isBest ? "b" : "span", cell, shown[kind](values[0]));
    if (values.length > 1)
      make("small", cell, `${shown[kind](values[1]).replace("x", "")}–${shown[kind](values[2]).replace("x", "")}`);
    return cell;
  };
  const unique = values => [...new Set(values)];
  const link = (parent, text, address) => { make("a", parent, text).href = address; };
  const folder = run => encodeURI(data.runs[run].folder);

  function isKept(row, except = "") {
    if (row.run === null ? !find("published").checked
                         : find("eligible").checked && !data.runs[row.run].eligible) return false;
    return selects.every(({ dataset, value }) =>
      value === ALL || dataset.field === except || String(row[dataset.field]) === value);
  }

  function drawRows() {
    const kept = data.rows.filter(row => isKept(row));
    const key = orders[find("order").value];
    if (key) {
      const size = row => row[key] ? -row[key][0] : Infinity;
      kept.sort((a, b) => size(a) < size(b) ? -1 : size(a) > size(b) ? 1 : 0);
    }
    const more = Math.max(0, kept.length - MOST);
    find("count").textContent = `${kept.length} of ${data.rows.length} results` +
      (more ? `; the first ${MOST} are shown: narrow the filters.` : ".");
    const table = find("table"), head = document.createElement("tr");
    const names = ["model", "machine", "engine", "task", "temperature"]
      .filter(name => unique(kept.map(row => row[name])).length > 1);
    table.textContent = "";
    make("thead", table).append(head);
    ["method", ...names].forEach((name, i) => {
      make("th", head, name === "temperature" ? "T" : name[0].toUpperCase() + name.slice(1), i ? "text" : "").scope = "col";
    });
    for (const title of ["tokens/s", "speedup", "MAT", ""])
      make("th", head, title).scope = "col";
    const body = make("tbody", table);
    for (const row of kept.slice(0, MOST)) {
      const line = make("tr", body, "", row.run === null ? "published" : "");
      make("th", line, row.method).scope = "row";
      for (const name of names) make("td", line, row[name], "text");
      number(line, row.tokens_per_s, "tokens_per_s");
      const speedup = number(line, row.speedup, "speedup");
      if (row.is_claimed) speedup.className = row.speedup[0] > 1 ? "green" : "red";
      number(line, row.mat, "mat");
      const links = make("td", line, "", "links");
      if (row.run === null) { link(links, row.source, row.url); continue; }
      link(links, "report", `${folder(row.run)}/report.html`);
      link(links, "command", `#run-${row.run}`);
      link(links, "samples", `${folder(row.run)}/samples.jsonl`);
    }
    if (!kept.length) make("td", make("tr", body), "No result has these values.", "reason").colSpan = 11;
  }

  // A task and a temperature must be one: numbers of several do not stand side by side.
  function pivot(id, kind, rowOf, columnOf, except) {
    const value = name => selects.find(({ dataset }) => dataset.field === name).value;
    const tasks = value("task") === ALL ? [data.mean] : [value("task")];
    const first = Math.min(...data.rows.map(row => row.temperature));
    const temperature = value("temperature") === ALL ? first : Number(value("temperature"));
    const kept = data.rows.filter(row => isKept(row, except) && row[kind] &&
      tasks.includes(row.task) && row.temperature === temperature);
    const table = find(id), columns = unique(kept.map(columnOf));
    table.textContent = "";
    const head = make("tr", make("thead", table));
    make("th", head, "Method").scope = "col";
    for (const column of columns) make("th", head, column).scope = "col";
    const body = make("tbody", table);
    for (const name of unique(kept.map(rowOf))) {
      const line = make("tr", body), own = kept.filter(row => rowOf(row) === name);
      const [method, more] = name.split("\n");
      const title = make("th", line, method);
      title.scope = "row";
      if (more) make("small", title, more);
      for (const column of columns) {
        const cells = own.filter(row => columnOf(row) === column);
        const cell = number(line, cells.length ? cells[cells.length - 1][kind] : null, kind);
        if (cells.length && cells[0].run === null) cell.style.fontStyle = "italic";
      }
    }
    if (!kept.length) make("td", make("tr", body), "No result has these values.", "reason");
  }

  const isPublished = row => row.run === null;
  const machine = row => isPublished(row) ? `${row.source}, ${row.machine}`
    : row.engine === "specbench" ? row.machine : `${row.machine}, ${row.engine}`;
  const model = row => isPublished(row) ? `${row.model} (${row.source})`
    : row.engine === "specbench" ? row.model : `${row.model}, ${row.engine}`;

  function draw() {
    drawRows();
    const row = one => `${one.method}\n${one.model}`;
    pivot("machines", "speedup", row, machine, "machine");
    pivot("rates", "tokens_per_s", row, machine, "machine");
    pivot("models", "mat", one => one.method, model, "model");
  }

  for (const select of selects) {
    const { field } = select.dataset;
    const values = unique(data.rows.map(row => row[field]));
    if (field === "temperature") values.sort((a, b) => a - b);
    make("option", select, "all").value = ALL;
    for (const value of values) make("option", select, value).value = value;
    if (field === "task" && values.includes(data.mean)) select.value = data.mean;
    select.onchange = draw;
  }
  for (const name of Object.keys(orders)) make("option", find("order"), name).value = name;
  for (const id of ["order", "published", "eligible"]) find(id).onchange = draw;
  const open = () => {
    const run = location.hash && document.querySelector(`details${location.hash}`);
    if (run) { run.open = true; run.scrollIntoView(); }
  };
  addEventListener("hashchange", open);
  draw();
  find("browser").hidden = false;
  open();
})();
