/* What a reader can take along from a chart: its data as a table, its picture as SVG or PNG.

   A chart's specification holds its data packed: one row a snapshot or a curve, with lists that Vega
   flattens. Here they are unpacked into plain tables, a row a value, by the chart's own formulas.
   Nothing is asked of a server, so it works from disk. */
(function () {
  "use strict";

  const charts = window.staircaseCharts;
  const SHOWN_ROWS = 300;
  const PNG_SCALE = 3.125; // 300 dots an inch, where a page has 96 pixels an inch
  const LAYOUT = ["t", "left", "room", "ink"]; // where and when a row is drawn, not what it says
  const CHANNELS = ["row", "column", "facet", "x", "y", "x2", "y2", "color", "detail"];
  const DECORATION = [
    "direct-label", "text-halo", "moment", "threshold", "threshold-label", "token-mark", "token-halo",
  ];

  // ---- tables -----------------------------------------------------------------------------------

  /* Single views of a specification, each with what it inherits. */
  function units(spec, inherited = {}) {
    const own = {
      data: spec.data || inherited.data,
      transform: [...(inherited.transform || []), ...(spec.transform || [])],
      encoding: { ...(inherited.encoding || {}), ...(spec.encoding || {}) },
      panel: typeof spec.title === "string" ? spec.title : spec.title?.text ?? inherited.panel,
    };
    const parts = spec.layer || spec.concat || spec.hconcat || spec.vconcat || (spec.spec && [spec.spec]);
    if (parts) return parts.flatMap((part) => units(part, own));
    return spec.mark ? [{ ...own, mark: spec.mark }] : [];
  }

  function isData({ data, mark, encoding }, spec) {
    const tip = encoding.tooltip;
    const silent = tip && !Array.isArray(tip) && "value" in tip && tip.value === null;
    return rowsOf(data, spec).length > 0 && !DECORATION.includes(mark.style) && !silent;
  }

  const rowsOf = (data, spec) => data?.values || (data?.name && spec.datasets?.[data.name]) || [];

  /* Column titles by field: what the tooltips tell, what the channels show besides, and by what rows
     are chosen to be shown. Numbers that an axis writes as names are left to the tooltips, which tell
     the names. */
  function columnsOf(same, rows) {
    const encodings = same.map((unit) => unit.encoding);
    const told = encodings.flatMap(({ tooltip }) => (Array.isArray(tooltip) ? tooltip : []));
    const shown = encodings.flatMap((encoding) => CHANNELS.flatMap((name) => encoding[name] || []));
    const named = ({ axis, header, legend }) =>
      legend === null || axis?.labelExpr?.includes("[datum.value]") || header?.labelExpr;
    const columns = new Map();
    for (const { field, title } of [...told.filter((t) => !t.aggregate), ...shown.filter((c) => !named(c))]) {
      const text = (title || field || "").replace(/ \(log scale\)$/, "");
      const fresh = typeof field === "string" && !columns.has(field) && ![...columns.values()].includes(text);
      if (fresh) columns.set(field, text);
    }
    for (const { filter } of same.flatMap((unit) => unit.transform)) {
      for (const [, field] of String(filter).matchAll(/\bdatum\.(\w+)/g)) {
        if (field in rows[0] && !LAYOUT.includes(field) && !columns.has(field)) columns.set(field, field);
      }
    }
    return columns;
  }

  /* The chart's tables, unpacked at need: {title, head, count, rows(limit)}. Panels with the same
     columns make one table, in which a column tells the panel. */
  function tablesOf({ spec, view, about }) {
    const sources = new Map(); // data -> views of it; the same data in two layers is told once
    for (const unit of units(spec)) {
      if (!isData(unit, spec)) continue;
      const key = JSON.stringify(rowsOf(unit.data, spec));
      sources.set(key, [...(sources.get(key) || []), unit]);
    }
    const tables = new Map();
    for (const same of sources.values()) {
      const rows = rowsOf(same[0].data, spec);
      const columns = columnsOf(same, rows);
      for (const field of columns.keys()) if (rows.every((row) => row[field] === "")) columns.delete(field);
      const timed = about.slider && rows.some((row) => "t" in row);
      const head = [...columns.values()];
      const part = {
        panel: typeof same[0].panel === "string" ? same[0].panel : "",
        fields: [...columns.keys()], rows, timed, transform: same[0].transform,
      };
      const key = JSON.stringify(head);
      tables.set(key, { head, parts: [...(tables.get(key)?.parts || []), part] });
    }
    return [...tables.values()].map(({ head, parts }) => {
      const timed = parts.some((part) => part.timed);
      const panels = new Set(parts.map((part) => part.panel)).size > 1;
      return {
        head: [...(panels ? ["panel"] : []), ...(timed ? [about.slider.label] : []), ...head],
        count: parts.reduce((sum, part) => sum + flat(part).count, 0),
        rows(limit = Infinity) {
          const out = [];
          for (const part of parts) {
            if (out.length >= limit) break;
            for (const datum of unpacked(part, spec, view, limit - out.length)) {
              const step = part.timed && part.rows.length > 1 ? about.slider.steps[datum.t] : "";
              const row = part.fields.map((field) => datum[field]);
              out.push([...(panels ? [part.panel] : []), ...(timed ? [step] : []), ...row]);
            }
          }
          return out;
        },
      };
    });
  }

  /* Fields that hold lists, and how many rows come out of them. */
  function flat({ rows, transform }) {
    const lists = transform.flatMap((step) => step.flatten || []);
    const length = (row) => (lists.length ? Math.max(...lists.map((field) => row[field].length)) : 1);
    return { lists, length, count: rows.reduce((sum, row) => sum + length(row), 0) };
  }

  function unpacked(part, spec, view, limit) {
    const { lists, length } = flat(part);
    const values = [];
    for (const row of part.rows) {
      for (let k = 0; k < length(row) && values.length < limit; k++) {
        const entry = { ...row, number: k + 1 }; // as Vega's row_number() counts within a packed row
        for (const field of lists) entry[field] = row[field][k];
        values.push(entry);
      }
      if (values.length >= limit) break;
    }
    const formulas = part.transform.filter((step) => "calculate" in step);
    if (!formulas.length) return values;
    return computed(values, formulas, spec, view);
  }

  /* The chart's formulas, over all its rows, by a Vega without a picture. Formulas read lists of
     names from parameters and, of these, nothing that a reader moves. */
  function computed(values, formulas, spec, view) {
    const signals = (spec.params || [])
      .filter((param) => !param.select)
      .map((param) => ({ name: param.name, value: view.signal(param.name) }));
    const transform = formulas.map((step) => ({ type: "formula", expr: step.calculate, as: step.as }));
    const runtime = window.vega.parse({ signals, data: [{ name: "table", values, transform }] });
    const hidden = new window.vega.View(runtime, { renderer: "none" }).run();
    const rows = hidden.data("table");
    hidden.finalize();
    return rows;
  }

  const cell = (value) => {
    if (value === null || value === undefined) return "";
    return typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value);
  };

  /* A token that a spreadsheet would run as a formula, such as =HYPERLINK(…), is text there with a '. */
  function csv({ head, rows }) {
    const inert = (text) => (/^[=+\-@\t\r][^]*[(|!]/.test(text) ? "'" + text : text);
    const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const line = (row) => row.map((value) => quoted(inert(cell(value)))).join(",") + "\r\n";
    return [head, ...rows()].map(line).join("");
  }

  // ---- the table in the page --------------------------------------------------------------------

  function part(tag, attributes, ...children) {
    const element = Object.assign(document.createElement(tag), attributes);
    element.append(...children);
    return element;
  }

  function showData(box, name) {
    const tables = tablesOf(charts.drawn.get(box));
    const close = part("button", { type: "button", className: "sc-close", textContent: "Close" });
    const title = part("h2", { id: `${name}-data-title`, textContent: "Data of this chart" });
    const head = part("div", { className: "sc-data-head" }, title, close);
    const dialog = part("dialog", { className: "sc-data" }, head);
    dialog.setAttribute("aria-labelledby", title.id);
    if (!tables.length) dialog.append(part("p", { textContent: "This chart has no table." }));
    tables.forEach((table, k) => {
      dialog.append(...tableParts(table, tables.length > 1 ? `${name}-${k + 1}` : name));
    });
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    box.append(dialog);
    dialog.showModal();
  }

  function tableParts(table, name) {
    const save = part("button", { type: "button", textContent: `Download ${name}.csv` });
    save.addEventListener("click", () => saveCsv(name, table));
    const all = table.count.toLocaleString("en");
    const told = table.count > SHOWN_ROWS ? `the first ${SHOWN_ROWS} of ${all} rows` : `${all} rows`;
    const head = table.head.map((text) => Object.assign(part("th", { textContent: text }), { scope: "col" }));
    const line = (row) => part("tr", {}, ...row.map((value) => part("td", { textContent: cell(value) })));
    const body = table.rows(SHOWN_ROWS).map(line);
    const shown = part("table", {}, part("thead", {}, part("tr", {}, ...head)), part("tbody", {}, ...body));
    const scroll = part("div", { className: "sc-data-rows", tabIndex: 0 }, shown);
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", `${name}: ${told}`);
    return [part("p", {}, save, ` ${told} below`), scroll];
  }

  // ---- files ------------------------------------------------------------------------------------

  const saveCsv = (name, table) => download(`${name}.csv`, "text/csv", "\ufeff" + csv(table));

  function download(name, type, content) {
    const address = URL.createObjectURL(new Blob([content], { type }));
    part("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }

  /* The chart as it stands, on a white ground in light colours, whatever the page's theme. */
  async function picture(box) {
    const { spec, view, about } = charts.drawn.get(box);
    const copy = structuredClone(spec);
    charts.keepChoices(copy, view);
    const vegaSpec = charts.compiled(charts.themed(copy, { dark: false, background: "white" }));
    const hidden = new window.vega.View(window.vega.parse(vegaSpec), { renderer: "none" });
    const names = [about.slider?.param, "now", "token"];
    for (const param of spec.params || []) {
      if (names.includes(param.name)) hidden.signal(param.name, view.signal(param.name));
    }
    return hidden.runAsync();
  }

  async function save(box, name, kind) {
    const view = await picture(box);
    if (kind === "svg") {
      download(`${name}.svg`, "image/svg+xml", await view.toSVG());
    } else {
      const canvas = await view.toCanvas(PNG_SCALE);
      canvas.toBlob((blob) => download(`${name}.png`, "image/png", blob));
    }
    view.finalize();
  }

  const nameOf = (box) => (box.closest("figure")?.id || "chart").replace(/^fig-/, "");

  charts.whenDrawn((box) => {
    const tools = box.querySelector(".sc-tools");
    if (!tools || tools.querySelector(".sc-take")) return;
    const name = nameOf(box);
    const button = (text, title, act) => {
      const made = part("button", { type: "button", textContent: text, title });
      made.setAttribute("aria-label", title);
      made.addEventListener("click", act);
      return made;
    };
    tools.append(part("span", { className: "sc-take" },
      button("Data", "Data: table and CSV", () => showData(box, name)),
      button("SVG", "SVG: download the picture", () => save(box, name, "svg")),
      button("PNG", "PNG: download the picture", () => save(box, name, "png"))));
  });

  charts.saveCsv = saveCsv; // a table is {head, rows}, rows a function that gives them
  charts.tables = (box) => tablesOf(charts.drawn.get(box)).map((table) => csv(table));
})();
