/* Draws the book's charts.

   A chart is a box with an inert Vega-Lite specification (staircase_lib/chart_renderer.py). It is
   drawn when it comes near the viewport, with Vega from this site, in the colours of the page's
   theme and in the width that there is; it is drawn again, its controls where they stood, when either
   changes. Charts of one clock share the current moment: a slider that is moved moves the other
   sliders and the thin rules in the curves. */
(function () {
  "use strict";

  const VEGA = new URL("vendor/vega-embed.js", document.currentScript.src).href;
  const NARROWEST_PANEL = 90;
  const drawn = new Map(); // box -> {view, about, result}
  const moments = new Map(); // clock -> step
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

  const INK = "#e6edf3", MUTED = "#a8b3bf", LINE = "#6e7681", GRID = "#30363d";
  const DARK = {
    view: { stroke: GRID },
    title: { color: INK },
    axis: { labelColor: INK, titleColor: INK, gridColor: GRID, domainColor: LINE, tickColor: LINE },
    legend: { labelColor: INK, titleColor: INK },
    header: { labelColor: INK, titleColor: INK },
    style: {
      "direct-label": { color: INK }, moment: { color: INK }, "token-point": { stroke: INK },
      threshold: { color: MUTED }, "threshold-label": { color: MUTED },
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

  function themed(spec) {
    const font = getComputedStyle(document.body).fontFamily;
    const config = merge(spec.config || {}, { font, background: "transparent" });
    return { ...spec, config: isDark() ? merge(config, DARK) : config };
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

  const drawnWidth = (host) => {
    const picture = host.querySelector("svg, canvas");
    return picture ? Math.ceil(picture.getBoundingClientRect().width) : 0;
  };

  // ---- drawing ----------------------------------------------------------------------------

  async function embed(box, spec, about) {
    const host = box.querySelector(".sc-view");
    const controls = box.querySelector(".sc-controls");
    controls.replaceChildren();
    const result = await window.vegaEmbed(host, themed(spec), {
      mode: "vega-lite",
      actions: false,
      bind: controls,
      renderer: about.canvas ? "canvas" : "svg",
      tooltip: { theme: isDark() ? "dark" : "light" },
      loader: { load: () => Promise.reject(new Error("charts carry their own data")) },
    });
    for (const buttons of controls.querySelectorAll(".vega-bind-radio")) {
      buttons.setAttribute("role", "radiogroup");
      buttons.setAttribute("aria-label", buttons.parentElement.querySelector(".vega-bind-name").textContent.trim());
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
    const room = box.clientWidth;
    let fitted = spec;
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
    host.style.minHeight = "";
    const hasRule = (spec.params || []).some((param) => param.name === "now");
    drawn.set(box, { view: result.view, about, result, room, hasRule });
    if (about.slider) prepareSlider(box, result.view, about);
    if (moments.has(about.clock)) await show(drawn.get(box), moments.get(about.clock));
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

  // ---- the current moment -----------------------------------------------------------------

  function prepareSlider(box, view, about) {
    const { param, steps, label } = about.slider;
    const input = box.querySelector(".sc-controls input[type=range]");
    if (!input) return;
    const caption = input.closest("label") || input.parentElement;
    const name = document.createElement("span");
    name.className = "sc-slider-name";
    name.textContent = label;
    const output = document.createElement("output");
    caption.replaceChildren(name, input, output);
    input.setAttribute("aria-label", label);
    const tell = (position) => {
      const text = Number(steps[position]).toLocaleString("en");
      output.textContent = text;
      input.setAttribute("aria-valuetext", label + " " + text);
    };
    tell(view.signal(param));
    view.addSignalListener(param, (_, position) => tell(position));
    input.addEventListener("input", () => share(box, about.clock, steps[Number(input.value)]));
  }

  function share(source, clock, step) {
    moments.set(clock, step);
    for (const [box, chart] of drawn) {
      if (box !== source && chart.about.clock === clock) show(chart, step);
    }
  }

  function show({ view, about, hasRule }, step) {
    if (about.slider) view.signal(about.slider.param, nearest(about.slider.steps, step));
    if (hasRule) view.signal("now", step);
    return view.runAsync();
  }

  function nearest(steps, step) {
    const distance = (s) => Math.abs(Math.log1p(Math.max(s, 0)) - Math.log1p(Math.max(step, 0)));
    return steps.reduce((best, s, k) => (distance(s) < distance(steps[best]) ? k : best), 0);
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

  let resizing = 0;
  window.addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => {
      for (const [box, chart] of drawn) if (box.clientWidth && box.clientWidth !== chart.room) schedule(box);
    }, 150);
  });

  new MutationObserver(() => [...drawn.keys()].forEach(schedule)).observe(
    document.documentElement, { attributes: true, attributeFilter: ["data-theme"] },
  );

  // Paper is light, and a chart that was never seen has not been drawn: both print as pictures.
  window.addEventListener("beforeprint", () => {
    for (const box of boxes()) {
      if (drawn.has(box) && !isDark()) continue;
      showPicture(box);
      box.classList.add("sc-print-picture");
    }
  });
  window.addEventListener("afterprint", () => {
    for (const box of boxes()) {
      if (!box.classList.contains("sc-print-picture")) continue;
      box.classList.remove("sc-print-picture");
      if (box.dataset.state !== "failed") box.querySelector(".sc-picture")?.remove();
    }
  });

  window.staircaseCharts = { drawn, drawAll: () => Promise.all(boxes().map(schedule)) };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
