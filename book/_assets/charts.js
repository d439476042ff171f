/* Draws the book's charts.

   A chart is a box with an inert Vega-Lite specification (staircase_lib/chart_renderer.py). It is
   drawn when it comes near the viewport, with Vega from this site, in the colours of the page's
   theme and in the width that there is; it is drawn again, its controls where they stood, when either
   changes. What charts share (moments, tokens) is in chart_links.js, their data and pictures to take
   along in chart_data.js. */
(function () {
  "use strict";

  const VEGA = new URL("vendor/vega-embed.js", document.currentScript.src).href;
  const NARROWEST_PANEL = 90, PHONE = 480;
  const drawn = new Map(); // box -> {view, about, result, spec, room}
  const steps = []; // what else is done with a chart that has been drawn
  let vega = null;

  function loadVega() {
    if (window.vegaEmbed) return Promise.resolve();
    vega = vega || new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = VEGA;
      script.onload = () => (window.vegaEmbed ? resolve() : reject(new Error("no vegaEmbed in " + VEGA)));
      script.onerror = () => reject(new Error("cannot load " + VEGA));
      document.head.appendChild(script);
    });
    return vega;
  }

  // ---- theme ------------------------------------------------------------------------------

  const INK = "#e6edf3", MUTED = "#a8b3bf", LINE = "#6e7681", GRID = "#30363d", GROUND = "#14181d";
  const DARK = {
    view: { stroke: GRID },
    title: { color: INK },
    axis: { labelColor: INK, titleColor: INK, gridColor: GRID, domainColor: LINE, tickColor: LINE },
    legend: { labelColor: INK, titleColor: INK },
    header: { labelColor: INK, titleColor: INK },
    style: {
      "direct-label": { color: INK }, moment: { color: INK }, "token-point": { stroke: INK },
      threshold: { color: MUTED }, "threshold-label": { color: MUTED },
      "token-mark": { color: INK }, "token-halo": { color: GROUND }, "token-name": { color: INK },
      "text-halo": { stroke: GROUND },
    },
  };

  function merge(base, over) {
    const out = { ...base };
    for (const [key, value] of Object.entries(over)) {
      out[key] = value && typeof value === "object" ? merge(out[key] || {}, value) : value;
    }
    return out;
  }

  const isDark = () => document.documentElement.dataset.theme === "dark";

  function themed(spec, { dark = isDark(), background = "transparent" } = {}) {
    const font = getComputedStyle(document.body).fontFamily;
    const config = merge(spec.config || {}, { font, background });
    return { ...spec, config: dark ? merge(config, DARK) : config };
  }

  /* Vega-Lite 5 writes into what it compiles that Vega 5 is to run it. Vega 6 runs it as well, but
     would say so in the console, once a chart. What marks a token lies over the picture and must not
     come between the pointer and what it points at, which Vega-Lite cannot say. */
  function compiled(spec) {
    const { $schema, ...vegaSpec } = window.vegaLite.compile(spec).spec;
    const passThrough = (marks) => {
      for (const mark of marks || []) {
        const styles = [mark.style].flat();
        if (styles.some((name) => /^token-(mark|halo|name)$/.test(name))) mark.interactive = false;
        passThrough(mark.marks);
      }
    };
    passThrough(vegaSpec.marks);
    return vegaSpec;
  }

  // ---- width ------------------------------------------------------------------------------

  function narrower(spec, pixels, { square, cells = 1 }) {
    const copy = { ...spec };
    if (typeof copy.width === "number") {
      const width = Math.floor(Math.max(NARROWEST_PANEL, copy.width - pixels) / cells) * cells;
      if (square && typeof copy.height === "number") copy.height -= copy.width - width;
      copy.width = width;
    }
    if (copy.concat) copy.concat = copy.concat.map((part) => narrower(part, pixels, { square, cells }));
    if (copy.spec) copy.spec = narrower(copy.spec, pixels, { square, cells });
    return copy;
  }

  /* On a phone, a legend in one row would be wider than its chart. */
  function withNarrowLegends(spec) {
    const copy = { ...spec };
    const columns = (channel) =>
      channel?.legend?.columns > 2 ? { ...channel, legend: { ...channel.legend, columns: 2 } } : channel;
    if (copy.encoding) {
      const channels = Object.entries(copy.encoding).map(([name, channel]) => [name, columns(channel)]);
      copy.encoding = Object.fromEntries(channels);
    }
    for (const parts of ["layer", "concat"]) {
      if (copy[parts]) copy[parts] = copy[parts].map(withNarrowLegends);
    }
    if (copy.spec) copy.spec = withNarrowLegends(copy.spec);
    return copy;
  }

  const drawnWidth = (host) => {
    const picture = host.querySelector("svg, canvas");
    return picture ? Math.ceil(picture.getBoundingClientRect().width) : 0;
  };

  // ---- drawing ----------------------------------------------------------------------------

  async function embed(box, spec, about) {
    const host = box.querySelector(".sc-view");
    const controls = box.querySelector(".sc-controls");
    controls.replaceChildren();
    const result = await window.vegaEmbed(host, compiled(themed(spec)), {
      mode: "vega",
      actions: false,
      bind: controls,
      renderer: about.canvas ? "canvas" : "svg",
      tooltip: { theme: isDark() ? "dark" : "light" },
      loader: { load: () => Promise.reject(new Error("charts carry their own data")) },
    });
    for (const buttons of controls.querySelectorAll(".vega-bind-radio")) {
      buttons.setAttribute("role", "radiogroup");
      const name = buttons.parentElement.querySelector(".vega-bind-name");
      buttons.setAttribute("aria-label", name.textContent.trim());
    }
    host.setAttribute("role", "img"); // one picture with its description; Vega made it a document
    host.removeAttribute("aria-roledescription");
    return result;
  }

  async function draw(box) {
    await loadVega();
    const spec = JSON.parse(box.querySelector("script.sc-spec").textContent);
    const about = (spec.usermeta && spec.usermeta.staircase) || { clock: "" };
    const before = drawn.get(box);
    if (before) {
      keepChoices(spec, before.view);
      before.result.finalize();
    }
    const host = box.querySelector(".sc-view");
    const room = box.clientWidth || (before ? before.room : Infinity); // no width: in a folded part
    let fitted = room < PHONE ? withNarrowLegends(spec) : spec;
    host.classList.remove("sc-scaled");
    let result = await embed(box, fitted, about);
    if (drawnWidth(host) > room && fitted.concat && fitted.concat.length > 1) {
      const columns = Math.min(fitted.columns || fitted.concat.length, fitted.concat.length);
      const excess = Math.ceil((drawnWidth(host) - room) / columns);
      const panel = fitted.concat[0].width || 0;
      // Panels that need to give up little stay side by side; otherwise they stack.
      fitted =
        excess <= 0.35 * panel
          ? narrower(fitted, excess, about)
          : { ...fitted, columns: 1 };
      result.finalize();
      result = await embed(box, fitted, about);
    }
    for (let attempt = 0; attempt < 2 && drawnWidth(host) > room; attempt++) {
      fitted = narrower(fitted, drawnWidth(host) - room, about);
      result.finalize();
      result = await embed(box, fitted, about);
    }
    // Long names leave less than the narrowest panel on a phone: the last bit is scaled.
    host.classList.toggle("sc-scaled", drawnWidth(host) > room && drawnWidth(host) < 1.2 * room);
    host.style.minHeight = "";
    const chart = { view: result.view, about, result, spec: fitted, room };
    drawn.set(box, chart);
    for (const step of steps) await step(box, chart);
    // The box has the text that tells what the picture shows; its marks are not told one by one.
    for (const svg of box.querySelectorAll(".sc-view svg")) svg.setAttribute("aria-hidden", "true");
    box.dataset.state = "drawn";
    document.dispatchEvent(new Event("sc-drawn"));
  }

  /* What a reader has set with a slider, a menu, buttons or a click outlives a new drawing. */
  function keepChoices(spec, view) {
    for (const param of spec.params || []) {
      if (!param.bind) continue;
      if (!param.select) param.value = view.signal(param.name);
      else {
        const chosen = param.select.fields.map((field) => [field, view.signal(param.name + "_" + field)]);
        if (chosen.every(([, value]) => value !== null)) param.value = [Object.fromEntries(chosen)];
      }
    }
  }

  function schedule(box) {
    const run = () => draw(box).catch((error) => fail(box, error));
    box.drawing = (box.drawing || Promise.resolve()).then(run);
    return box.drawing;
  }

  function fail(box, error) {
    box.dataset.state = "failed";
    console.error("chart not drawn:", error);
    showPicture(box);
  }

  function showPicture(box) {
    const fallback = box.querySelector("noscript");
    if (!fallback || box.querySelector(".sc-picture")) return;
    const holder = document.createElement("div");
    holder.className = "sc-picture";
    holder.innerHTML = fallback.textContent; // our own markup: one img
    box.appendChild(holder);
  }

  /* A box like those of the page, for a specification that comes later (from a kernel). It is drawn
     once it is in the page and near the viewport. */
  function makeBox(spec) {
    const part = (tag, name) => Object.assign(document.createElement(tag), { className: name });
    const box = part("div", "sc-chart");
    const view = part("div", "sc-view");
    view.setAttribute("role", "img");
    view.setAttribute("aria-label", spec.description || "chart");
    const script = part("script", "sc-spec");
    script.type = "application/json";
    script.textContent = JSON.stringify(spec);
    box.append(view, part("div", "sc-controls"), part("div", "sc-tools"), script);
    onSight.observe(box);
    return box;
  }

  // ---- when -------------------------------------------------------------------------------

  const onSight = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      onSight.unobserve(entry.target);
      schedule(entry.target);
    }
  }, { rootMargin: "400px" });

  const boxes = () => [...document.querySelectorAll(".sc-chart")];
  const start = () => boxes().forEach((box) => onSight.observe(box));

  /* Boxes that have left the page are forgotten. */
  function remaining() {
    for (const [box, chart] of drawn) {
      if (box.isConnected) continue;
      chart.result.finalize();
      drawn.delete(box);
    }
    return [...drawn];
  }

  let resizing = 0;
  window.addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => {
      for (const [box, chart] of remaining()) {
        if (box.clientWidth && box.clientWidth !== chart.room) schedule(box);
      }
    }, 150);
  });

  new MutationObserver(() => remaining().forEach(([box]) => schedule(box))).observe(
    document.documentElement, { attributes: true, attributeFilter: ["data-theme"] },
  );

  // Paper is light and finer than a canvas, and a chart that was never seen has not been drawn: all
  // these print as pictures.
  window.addEventListener("beforeprint", () => {
    for (const box of boxes()) {
      if (drawn.has(box) && !isDark() && !drawn.get(box).about.canvas) continue;
      showPicture(box);
      if (box.querySelector(".sc-picture")) box.classList.add("sc-print-picture");
    }
  });
  window.addEventListener("afterprint", () => {
    for (const box of boxes()) {
      if (!box.classList.contains("sc-print-picture")) continue;
      box.classList.remove("sc-print-picture");
      if (box.dataset.state !== "failed") box.querySelector(".sc-picture")?.remove();
    }
  });

  window.staircaseCharts = {
    drawn,
    remaining,
    themed,
    compiled,
    keepChoices,
    box: makeBox,
    drawAll: () => Promise.all(boxes().map(schedule)),
    whenDrawn: (step) => steps.push(step),
  };
  // Not before chart_links.js and chart_data.js have said what they do with a chart.
  if (document.readyState === "complete") start();
  else document.addEventListener("DOMContentLoaded", start);
})();
