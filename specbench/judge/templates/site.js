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
  shown.throughput = shown.tokens_per_s;
  shown.throughput_ratio = shown.speedup;
  const hasMean = data.rows.some(row => row.task === data.mean && row.run !== null);
  const isServed = data.rows.some(row => row.throughput);
  const kinds = { speedup: "speedup", MAT: "mat", "tok/s per request": "tokens_per_s" };
  if (isServed) Object.assign(kinds, { throughput: "throughput", "relative to vanilla": "throughput_ratio" });
  const orders = { speedup: "speedup", "as measured": null, ...kinds };

  const make = (tag, parent, text = "", name = "") => {
    const element = parent.appendChild(document.createElement(tag));
    element.textContent = text;
    if (name) element.className = name;
    return element;
  };
  const number = (parent, values, kind) => {
    const cell = make("td", parent);
    if (!values) { cell.textContent = "–"; return cell; }
    make("span", cell, shown[kind](values[0]));
    if (values.length > 1)
      make("small", cell, `${shown[kind](values[1]).replace("x", "")}–${shown[kind](values[2]).replace("x", "")}`);
    return cell;
  };
  // The name of a method, and on a small second line its settings, then `more`.
  const label = (parent, text, more = "") => {
    const [, name, settings, star] = text.match(/^(.+?) \((.+)\)(\*?)$/) ?? [, text, "", ""];
    const span = make("span", parent, name + star, "label");
    for (const line of [settings, more].filter(Boolean)) make("span", span, line, "settings");
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

  // The rows in the chosen order, those of papers last.
  function inOrder(rows) {
    const key = orders[find("order").value];
    if (!key) return rows;
    const size = row => row[key] ? -row[key][0] : 1e9;
    return [...rows].sort((a, b) => (a.run === null) - (b.run === null) || size(a) - size(b) || 0);
  }

  function drawRows() {
    const kept = inOrder(data.rows.filter(row => isKept(row)));
    const key = orders[find("order").value];
    const more = Math.max(0, kept.length - MOST);
    find("count").textContent = `${kept.length} of ${data.rows.length} results` +
      (more ? `; the first ${MOST} are shown: narrow the filters.` : ".");
    const table = find("table"), head = document.createElement("tr");
    const names = ["model", "machine", "engine", "threads", "task", "temperature"]
      .filter(name => unique(kept.map(row => row[name])).length > 1);
    table.textContent = "";
    make("thead", table).append(head);
    const heading = (text, name = "") => { make("th", head, text, name).scope = "col"; };
    ["Method", ...Object.keys(kinds), "n"].forEach(title => heading(title));
    for (const name of names) heading(name === "temperature" ? "T" : name[0].toUpperCase() + name.slice(1), "text");
    heading("");
    if (key) head.children[1 + Object.values(kinds).indexOf(key)].ariaSort = "descending";
    const body = make("tbody", table);
    for (const row of kept.slice(0, MOST)) {
      const line = make("tr", body, "", row.run === null ? "published" : "");
      const title = make("th", line);
      title.scope = "row";
      label(title, row.method);
      const speedup = number(line, row.speedup, "speedup");
      if (row.is_alone) speedup.firstChild.textContent += "~";
      if (row.is_claimed) speedup.className = row.speedup[0] > 1 ? "green" : "red";
      for (const kind of Object.values(kinds).slice(1)) number(line, row[kind], kind);
      make("td", line, row.num_samples ?? "–");
      for (const name of names) make("td", line, row[name] ?? "–", "text");
      const links = make("td", line, "", "links");
      if (row.run === null) { link(links, row.source, row.url); continue; }
      link(links, "report", `${folder(row.run)}/report.html`);
      link(links, "command", `#run-${row.run}`);
      const samples = data.runs[row.run].samples;
      if (samples) link(links, "samples", `${folder(row.run)}/${samples}`);
    }
    if (!kept.length) make("td", make("tr", body), "No result has these values.", "reason").colSpan = 13;
  }

  // A task and a temperature must be one: numbers of several do not stand side by side.
  function pivot(id, kind, rowOf, columnOf, except) {
    const value = name => selects.find(({ dataset }) => dataset.field === name).value;
    const task = value("task") || (hasMean ? data.mean : data.rows[0].task);
    const first = Math.min(...data.rows.map(row => row.temperature));
    const temperature = value("temperature") === ALL ? first : Number(value("temperature"));
    const kept = data.rows.filter(row => isKept(row, except) && row[kind] &&
      row.task === task && row.temperature === temperature);
    const table = find(id), columns = unique(kept.map(columnOf));
    table.textContent = "";
    const head = make("tr", make("thead", table));
    make("th", head, "Method").scope = "col";
    for (const column of columns) make("th", head, column).scope = "col";
    const body = make("tbody", table);
    for (const name of unique(inOrder(kept).map(rowOf))) {
      const line = make("tr", body), own = kept.filter(row => rowOf(row) === name);
      const [method, more] = name.split("\n");
      const title = make("th", line);
      title.scope = "row";
      label(title, method, more);
      for (const column of columns) {
        const best = own.filter(row => columnOf(row) === column)
          .sort((a, b) => a.num_samples - b.num_samples || a.run - b.run).pop();
        const cell = number(line, best ? best[kind] : null, kind);
        if (best && best.run === null) cell.style.fontStyle = "italic";
        else if (best) make("small", cell, `n ${best.num_samples}`);
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
    if (isServed) {
      pivot("throughputs", "throughput", row, machine, "machine");
      pivot("ratios", "throughput_ratio", row, machine, "machine");
    }
    pivot("models", "mat", one => one.method, model, "model");
  }

  // The view is in the address: what differs from the first view, as "#machine=AMD+EPYC&order=speedup".
  const controls = [...selects, ...["order", "published", "eligible"].map(find)];
  const nameOf = control => control.dataset.field || control.id;
  const valueOf = control => control.type === "checkbox" ? String(control.checked) : control.value;
  const first = {};
  function keep() {
    const view = new URLSearchParams();
    for (const control of controls)
      if (valueOf(control) !== first[nameOf(control)]) view.set(nameOf(control), valueOf(control));
    history.replaceState(null, "", `${location.pathname}${location.search}#${view}`);
    draw();
  }
  function open() {
    const run = /^#run-\d+$/.test(location.hash) && find(location.hash.slice(1));
    if (run) { run.open = true; run.scrollIntoView(); return; }
    const view = new URLSearchParams(location.hash.slice(1));
    for (const control of controls) {
      const value = view.get(nameOf(control)) ?? first[nameOf(control)];
      if (control.type === "checkbox") control.checked = value === "true";
      else control.value = [...control.options].some(option => option.value === value) ? value : first[nameOf(control)];
    }
    draw();
  }

  for (const select of selects) {
    const { field } = select.dataset;
    const values = unique(data.rows.map(row => row[field])).filter(value => value !== null);
    if (field === "temperature" || field === "threads") values.sort((a, b) => a - b);
    make("option", select, "all").value = ALL;
    for (const value of values) make("option", select, value).value = value;
    if (field === "task" && hasMean) select.value = data.mean;
  }
  for (const name of Object.keys(orders)) make("option", find("order"), name).value = name;
  for (const control of controls) {
    first[nameOf(control)] = valueOf(control);
    control.onchange = keep;
  }
  // The results are sorted as a whole, not only the rows that are shown.
  find("table").addEventListener("click", event => {
    const title = event.target.closest("thead th")?.textContent;
    if (!(title in orders)) return;
    event.stopPropagation();
    find("order").value = find("order").value === title ? "as measured" : title;
    keep();
  });
  addEventListener("hashchange", open);
  draw();
  find("served").hidden = !isServed;
  find("browser").hidden = false;
  open();
})();
