/* What the charts of a page share.

   Moments: charts of one clock stand at the same step. A slider that is moved, or played, moves the
   other sliders and the thin rules in the curves. Tokens: a token that is pointed at in one chart is
   marked in every chart that shows it, wherever it stands there; a click keeps it marked, another
   click or Escape lets go. Which charts share what stands in their specification
   (staircase_lib/figures/style.py); what a marked token looks like, too, as a function of the
   parameter `token`.

   Other scripts join in by two events of the document, which are sent and heeded here:
   `sc-moment` with {clock, step} and `sc-token` with {group, token}, token null for none. */
(function () {
  "use strict";

  const charts = window.staircaseCharts;
  const moments = new Map(); // clock -> step
  const tokens = new Map(); // group -> {pointed, pinned}, names or null
  const PLAYED_IN = 7000, FASTEST = 70, SLOWEST = 500; // milliseconds, of all steps and of one
  const FEWEST_IN_MENU = 5; // so few bars or panels are seen at a glance
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  // ---- bringing charts up to date ---------------------------------------------------------------

  const inView = new WeakSet();
  const late = new Set();
  const sight = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) inView.add(target);
      else inView.delete(target);
      if (isIntersecting && late.has(target)) refresh(target);
    }
  });

  /* Charts in view follow at once, the others when there is time. */
  function refreshAll(concerned, source) {
    for (const [box, chart] of charts.remaining()) {
      if (box === source || !concerned(chart)) continue;
      if (inView.has(box)) refresh(box);
      else late.add(box);
    }
    if (late.size) whenIdle(() => [...late].forEach(refresh));
  }

  const whenIdle = window.requestIdleCallback
    ? (run) => window.requestIdleCallback(run, { timeout: 400 })
    : (run) => setTimeout(run, 200);

  /* Sets what differs, so that a chart which shows it all already is left alone. */
  function refresh(box) {
    late.delete(box);
    const chart = charts.drawn.get(box);
    if (!chart) return null;
    const { view, about } = chart;
    const wanted = {};
    const step = moments.get(about.clock);
    if (step !== undefined && about.slider) wanted[about.slider.param] = nearest(about.slider.steps, step);
    if (step !== undefined && has(chart, "now")) wanted.now = step;
    if (has(chart, "token")) wanted.token = shownToken(about.tokens) || "";
    const changed = Object.entries(wanted).filter(([name, value]) => view.signal(name) !== value);
    for (const [name, value] of changed) view.signal(name, value);
    if (chart.menu) chart.menu.value = chart.menu.names.has(pinned(about.tokens)) ? pinned(about.tokens) : "";
    return changed.length ? view.runAsync() : null;
  }

  const has = (chart, name) => (chart.spec.params || []).some((param) => param.name === name);

  // ---- moments ----------------------------------------------------------------------------------

  function setMoment(clock, step, source) {
    if (moments.get(clock) === step) return;
    moments.set(clock, step);
    tell("sc-moment", { clock, step });
    refreshAll((chart) => chart.about.clock === clock, source);
  }

  function nearest(steps, step) {
    const distance = (s) => Math.abs(Math.log1p(Math.max(s, 0)) - Math.log1p(Math.max(step, 0)));
    return steps.reduce((best, s, k) => (distance(s) < distance(steps[best]) ? k : best), 0);
  }

  function prepareSlider(box, { view, about }) {
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
    const show = (position) => {
      const text = Number(steps[position]).toLocaleString("en");
      output.textContent = text;
      input.setAttribute("aria-valuetext", label + " " + text);
    };
    show(view.signal(param));
    view.addSignalListener(param, (_, position) => show(position));
    input.addEventListener("input", () => setMoment(about.clock, steps[Number(input.value)], box));
    caption.before(playButton(input, label));
    caption.parentElement.classList.add("sc-time");
  }

  // ---- play -------------------------------------------------------------------------------------

  let playing = null; // the button that is pressed

  /* Beside a slider: plays it once. A reader who asked for little motion gets one step a press. */
  function playButton(input, label) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sc-play";
    const name = () => {
      const word = still.matches ? "Next" : playing === button ? "Pause" : "Play";
      button.dataset.shows = word.toLowerCase();
      button.title = `${word} ${label}`;
      button.setAttribute("aria-label", `${word} ${label}`);
    };
    const stop = () => {
      playing = null;
      name();
    };
    const last = Number(input.max);
    const move = (position) => {
      input.value = position;
      input.dispatchEvent(new Event("input", { bubbles: true }));
    };
    const pace = Math.min(SLOWEST, Math.max(FASTEST, PLAYED_IN / last));
    const advance = () => {
      if (playing !== button) return;
      if (!input.isConnected || Number(input.value) >= last) {
        stop();
        return;
      }
      move(Number(input.value) + 1);
      setTimeout(advance, pace);
    };
    button.addEventListener("click", () => {
      const position = Number(input.value);
      if (still.matches) {
        move(position >= last ? 0 : position + 1);
      } else if (playing === button) {
        stop();
      } else {
        playing?.dispatchEvent(new Event("sc-stop"));
        playing = button;
        name();
        if (position >= last) move(0);
        setTimeout(advance, pace);
      }
    });
    button.addEventListener("sc-stop", stop);
    input.addEventListener("input", (event) => {
      if (event.isTrusted && playing === button) stop(); // the reader took over
    });
    name();
    return button;
  }

  // ---- tokens -----------------------------------------------------------------------------------

  const pinned = (group) => tokens.get(group)?.pinned ?? null;
  const shownToken = (group) => tokens.get(group)?.pointed ?? pinned(group);

  function setToken(group, change) {
    const before = shownToken(group);
    const kept = pinned(group);
    tokens.set(group, { pointed: null, pinned: null, ...tokens.get(group), ...change });
    if (shownToken(group) === before && pinned(group) === kept) return;
    if (shownToken(group) !== before) tell("sc-token", { group, token: shownToken(group) });
    refreshAll((chart) => chart.about.tokens === group);
  }

  const pin = (group, token) => setToken(group, { pinned: token, pointed: null });

  function prepareTokens(box, chart) {
    const { tokens: group, token_field: field } = chart.about;
    const named = (item) => {
      if (!item || !item.datum || item.mark.marktype === "line") return null;
      const token = item.datum[field];
      return typeof token === "string" ? token : null;
    };
    chart.view.addEventListener("pointerover", (_, item) => setToken(group, { pointed: named(item) }));
    chart.view.addEventListener("pointerout", () => setToken(group, { pointed: null }));
    chart.view.addEventListener("click", (_, item) => {
      const token = named(item);
      if (token !== null) pin(group, token === pinned(group) ? null : token);
    });
    addMenu(box, chart, group);
  }

  /* The same by keyboard: a menu of the chart's tokens. */
  function addMenu(box, chart, group) {
    const names = namesIn(chart);
    const tools = box.querySelector(".sc-tools");
    tools?.querySelector(".sc-token")?.remove();
    if (!tools || names.length < FEWEST_IN_MENU) return;
    const label = document.createElement("label");
    label.className = "sc-token";
    const menu = document.createElement("select");
    menu.append(new Option("none", ""), ...names.map((name) => new Option(name, name)));
    menu.names = new Set(names);
    menu.addEventListener("change", () => pin(group, menu.value || null));
    label.append("mark token ", menu);
    tools.prepend(label);
    chart.menu = menu;
  }

  function namesIn({ spec, view, about }) {
    if (about.token_names) return [...new Set(view.signal(about.token_names))];
    const found = new Set();
    const field = about.token_field;
    const look = (part) => {
      for (const row of part.data?.values || []) if (field in row) found.add(row[field]);
      for (const inner of [...(part.layer || []), ...(part.concat || [])]) look(inner);
    };
    look(spec);
    return [...found];
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
    for (const group of tokens.keys()) pin(group, null);
  });

  // ---- the page's other scripts -----------------------------------------------------------------

  function tell(name, detail) {
    document.dispatchEvent(new CustomEvent(name, { detail }));
  }

  document.addEventListener("sc-moment", ({ detail }) => setMoment(detail.clock, detail.step));
  document.addEventListener("sc-token", ({ detail }) => {
    const token = detail.token ?? null;
    if (token !== shownToken(detail.group)) pin(detail.group, token);
  });

  charts.whenDrawn((box, chart) => {
    sight.observe(box);
    if (chart.about.slider) prepareSlider(box, chart);
    if (chart.about.tokens) prepareTokens(box, chart);
    return refresh(box);
  });
})();
