/* The staircase explorer: plays recorded runs (staircase_lib/recordings.py) in the page.

   A box holds the recordings as inert JSON. Task, gamma, seed, moment, order and token make up the
   state; it stands in the page's address, so that a view can be linked. What changes with the state
   is drawn in three kinds: a run (everything), a moment (what moves), a token (what is marked).

   With the charts of its page it shares the token that is pointed at, by name, and the moment, with
   those that name no clock: by the events of chart_links.js. */
(function () {
  "use strict";

  const ORDER_COLORS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7"]; // as in figures/style.py
  const MODEL_COLOR = "#D55E00", LOSS_COLOR = "#7A889E";
  const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58",
    "#b5de2b", "#fde725"];
  const BLUE_RED = ["#053061", "#2166ac", "#4393c3", "#92c5de", "#d1e5f0", "#f7f7f7", "#fddbc7", "#f4a582",
    "#d6604d", "#b2182b", "#67001f"];
  const SUBSCRIPT = ["₀", "₁", "₂", "₃"];
  const FRAME = 130, STILL_FRAME = 600; // milliseconds a moment, without motion slower

  // ---- data -------------------------------------------------------------------------------

  /* Fixed-point codes back to numbers; the highest code is an undefined value. */
  function unpack({ shape, low, high, bits, codes }) {
    const bytes = Uint8Array.from(atob(codes), (c) => c.charCodeAt(0));
    const top = 2 ** bits - 2, scale = (high - low) / top;
    const view = new DataView(bytes.buffer);
    const values = new Float64Array(bytes.length / (bits / 8));
    for (let k = 0; k < values.length; k++) {
      const code = bits === 8 ? bytes[k] : view.getUint16(2 * k, true);
      values[k] = code > top ? NaN : low + scale * code;
    }
    return { shape, values };
  }

  /* Part k of an array along its first axis. */
  function part({ shape, values }, k) {
    const size = shape.slice(1).reduce((a, b) => a * b, 1);
    return { shape: shape.slice(1), values: values.subarray(k * size, (k + 1) * size) };
  }

  const decoded = new WeakMap();
  function read(packed) {
    if (!decoded.has(packed)) decoded.set(packed, unpack(packed));
    return decoded.get(packed);
  }

  function nearest(list, value, of = (x) => x) {
    const away = (x) => Math.abs(of(x) - of(value));
    return list.reduce((best, x, k) => (away(x) < away(list[best]) ? k : best), 0);
  }
  const pairIndex = (i, j, n) => (i > j ? pairIndex(j, i, n) : i * n - (i * (i + 1)) / 2 + j - i - 1);

  // ---- colours and numbers ----------------------------------------------------------------

  function mixed(stops, t) {
    const at = Math.min(Math.max(t, 0), 1) * (stops.length - 1);
    const k = Math.min(Math.floor(at), stops.length - 2);
    const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    const a = channels(stops[k]), b = channels(stops[k + 1]);
    return `rgb(${a.map((x, c) => Math.round(x + (b[c] - x) * (at - k))).join(",")})`;
  }

  const BLUE_RED_CODES = Array.from({ length: 255 }, (_, k) => mixed(BLUE_RED, k / 254));
  const similarityColor = (r) => (Number.isNaN(r) ? "none" : BLUE_RED_CODES[Math.round((r + 1) * 127)]);
  const tokenColor = (k, n) => mixed(VIRIDIS, 0.08 + (0.82 * k) / Math.max(n - 1, 1));
  const count = (x) => x.toLocaleString("en");
  const fixed = (x, digits = 2) => (Number.isNaN(x) ? "undefined" : x.toFixed(digits).replace("-", "−"));
  const percent = (x) => `${Math.round(100 * x)} %`;

  // ---- elements ---------------------------------------------------------------------------

  function add(parent, name, attributes = {}, text = "") {
    const inSvg = name === "svg" || parent.namespaceURI === "http://www.w3.org/2000/svg";
    const node = inSvg
      ? document.createElementNS("http://www.w3.org/2000/svg", name)
      : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text) node.textContent = text;
    parent.append(node);
    return node;
  }

  function write(svg, kind, x, y, words, anchor = "start") {
    return add(svg, "text", { class: kind, x, y, "text-anchor": anchor }, words);
  }

  function canvas(panel, height) {
    panel.view.replaceChildren();
    const width = panel.view.clientWidth;
    const svg = add(panel.view, "svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
    return { svg, width, height };
  }

  /* Which of n labels, `room` pixels apart, can be written. */
  function thinned(labels, room) {
    const longest = Math.max(...labels.map((label) => label.length));
    const every = [1, 2, 5, 10, 20, 50].find((k) => k * room >= 6.3 * longest + 4) || labels.length;
    return (k) => k % every === 0;
  }

  // ---- the explorer -----------------------------------------------------------------------

  class Explorer {
    constructor(box) {
      this.box = box;
      this.tasks = JSON.parse(box.querySelector("script.sc-recorded").textContent).tasks;
      this.state = { task: 0, gamma: 0, seed: 0, moment: 0, order: 0, token: 0 };
      this.preview = null; // the token under the pointer, here or in a chart of the page
      this.partner = null; // and the other token of its cell
      this.kept = null; // name of the token that the page marks while none is pointed at here
      this.speaking = false;
      this.timer = 0;
      this.build();
      this.start();
    }

    get task() { return this.tasks[this.state.task]; }
    get gammas() { return [...new Set(this.task.runs.map((run) => run.gamma))]; }
    get seeds() { return [...new Set(this.task.runs.map((run) => run.seed))]; }
    get run() { return this.runOf(this.seeds[this.state.seed]); }
    get token() { return this.preview === null ? this.state.token : this.preview; }
    runOf(seed) {
      return this.task.runs.find((run) => run.gamma === this.gammas[this.state.gamma] && run.seed === seed);
    }
    values(name, run = this.run) { return read(run.values[name]); }
    now(name, run = this.run) { return part(this.values(name, run), this.state.moment); }

    // ---- controls -------------------------------------------------------------------------

    build() {
      const { box } = this;
      const choices = add(box, "div", { class: "sx-choices" });
      const taskField = add(choices, "label", { class: "sx-field" });
      add(taskField, "span", { class: "sx-name" }, "task");
      this.taskSelect = add(taskField, "select", { name: "sx-task" });
      this.tasks.forEach((task, k) => add(this.taskSelect, "option", { value: k }, task.title));
      this.taskSelect.addEventListener("change", () => this.choose({ task: Number(this.taskSelect.value) }));
      this.gammaField = this.pills(choices, "gamma", "initialization rate γ", "γ");
      this.seedField = this.pills(choices, "seed", "seed", "seed");
      this.rule = add(box, "p", { class: "sx-rule" });

      const time = add(box, "div", { class: "sx-time" });
      this.play = add(time, "button", { type: "button", class: "sx-play", "aria-label": "play" });
      this.play.addEventListener("click", () => (this.timer ? this.stop() : this.playOn()));
      this.slider = add(time, "input", { type: "range", min: 0, step: 1, "aria-label": "step of training" });
      this.slider.addEventListener("input", () => {
        this.stop();
        this.move(Number(this.slider.value));
      });
      this.told = add(time, "output", { class: "sx-told", "aria-live": "off" });

      this.tokenField = this.pills(box, "token", "token", "token");
      this.tokenField.field.classList.add("sx-tokens");
      const panels = add(box, "div", { class: "sx-panels" });
      this.panels = {
        plane: this.panel(panels, "sx-third"),
        embeddings: this.panel(panels, "sx-third sx-half-small"),
        signatures: this.panel(panels, "sx-third sx-half-small"),
      };
      const legend = add(panels, "div", { class: "sx-legend" });
      add(legend, "span", {}, "−1");
      add(legend, "span", { class: "sx-bar" });
      add(legend, "span", {}, "1");
      this.reading = add(legend, "span", { class: "sx-reading" });
      this.orderField = this.pills(panels, "order", "signature order", "signature of order");
      this.orderField.field.classList.add("sx-orders");
      Object.assign(this.panels, {
        signature: this.panel(panels, "sx-half"),
        shares: this.panel(panels, "sx-half"),
        loss: this.panel(panels, "sx-half"),
        alignment: this.panel(panels, "sx-half"),
      });

      const more = add(box, "p", { class: "sx-more" });
      this.link = add(more, "a", { href: "#" }, "Link to this view");
      this.link.addEventListener("click", (event) => {
        event.preventDefault();
        this.tellAddress();
        navigator.clipboard?.writeText(location.href).then(() => this.sayCopied(), () => {});
      });
      const csv = add(more, "button", { type: "button", class: "sx-csv" }, "Data of this view (CSV)");
      csv.addEventListener("click", () => this.download());
      const still = add(box, "div", { class: "sx-still" });
      still.innerHTML = box.querySelector("noscript")?.textContent || ""; // our own markup: one img
    }

    sayCopied() {
      this.link.textContent = "Link copied";
      setTimeout(() => { this.link.textContent = "Link to this view"; }, 1500);
    }

    panel(parent, kind) {
      const holder = add(parent, "section", { class: `sx-panel ${kind}` });
      const title = add(holder, "p", { class: "sx-title" });
      const view = add(holder, "div", { class: "sx-view" });
      return { holder, title, view, note: add(holder, "p", { class: "sx-note" }) };
    }

    /* Buttons of which one is chosen: radio buttons, with the keys that these have. */
    pills(parent, name, label, shown) {
      const field = add(parent, "div", { class: "sx-field", role: "radiogroup", "aria-label": label });
      add(field, "span", { class: "sx-name" }, shown);
      return { field, name, holder: add(field, "span", { class: "sx-pills" }) };
    }

    fillPills({ holder, name }, texts, chosen, color) {
      const same = holder.children.length === texts.length &&
        [...holder.children].every((pill, k) => pill.textContent === texts[k]);
      if (!same) {
        holder.replaceChildren();
        texts.forEach((text, k) => {
          const pill = add(holder, "label", { class: "sx-pill" });
          if (color) pill.style.setProperty("--sx-color", color(k));
          const input = add(pill, "input", { type: "radio", name: `sx-${name}`, value: k });
          input.addEventListener("change", () => this.choose({ [name]: k }));
          add(pill, "span", {}, text);
          if (name === "token") this.reactsTo(pill, k);
        });
      }
      [...holder.querySelectorAll("input")].forEach((input, k) => (input.checked = k === chosen));
    }

    // ---- state ----------------------------------------------------------------------------

    start() {
      const given = this.fromAddress();
      if (!given) {
        Object.assign(this.state, this.opening());
        this.draw();
      }
      window.addEventListener("hashchange", () => this.fromAddress());
      document.addEventListener("sc-moment", ({ detail }) => this.hearMoment(detail));
      document.addEventListener("sc-token", ({ detail }) => this.hearToken(detail));
      new ResizeObserver(() => {
        if (this.box.clientWidth !== this.drawnAt) this.draw();
      }).observe(this.box);
      this.box.dataset.state = "drawn";
    }

    /* Small start, at the moment that the theory dates. */
    opening() {
      this.state.gamma = this.gammas.length - 1;
      const { stair, steps } = this.run;
      const token = Math.min(3, this.task.anchors.length - 1);
      return { gamma: this.state.gamma, moment: stair ? nearest(steps, stair, Math.log1p) : 0, token };
    }

    choose(change) {
      const step = this.run.steps[this.state.moment];
      const gamma = this.gammas[this.state.gamma], seed = this.seeds[this.state.seed];
      Object.assign(this.state, change);
      if ("task" in change) {
        this.stop();
        this.state.gamma = nearest(this.gammas, gamma);
        this.state.seed = Math.max(0, this.seeds.indexOf(seed));
      }
      this.keepInRange(step);
      if ("token" in change) this.keep();
      this.preview = this.atRest;
      if (Object.keys(change).join() === "token") this.mark();
      else this.draw();
      this.tellAddress();
    }

    keepInRange(step) {
      const { state, task, run } = this;
      state.order = Math.min(state.order, task.orders - 1);
      state.token = Math.min(state.token, task.anchors.length - 1);
      state.moment = nearest(run.steps, step, Math.log1p);
    }

    move(moment) {
      const last = this.run.steps.length - 1;
      this.standAt(Math.min(Math.max(moment, 0), last));
      this.tellMoment();
    }

    standAt(moment) {
      this.state.moment = moment;
      this.drawMoment();
      clearTimeout(this.telling);
      this.telling = setTimeout(() => this.tellAddress(), 250);
    }

    playOn() {
      const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
      const last = this.run.steps.length - 1;
      if (this.state.moment === last) this.move(0);
      this.timer = setInterval(() => {
        this.move(this.state.moment + 1);
        if (this.state.moment === this.run.steps.length - 1) this.stop();
      }, still ? STILL_FRAME : FRAME);
      this.showPlaying();
    }

    stop() {
      clearInterval(this.timer);
      this.timer = 0;
      this.showPlaying();
    }

    showPlaying() {
      this.play.setAttribute("aria-label", this.timer ? "pause" : "play");
      this.play.classList.toggle("sx-playing", Boolean(this.timer));
      this.box.classList.toggle("sx-film", Boolean(this.timer));
    }

    // ---- the page's charts ----------------------------------------------------------------

    /* What is said here comes back from the charts, which pass it on; it is not heard again. */
    tell(name, detail) {
      this.speaking = true;
      document.dispatchEvent(new CustomEvent(name, { detail }));
      this.speaking = false;
    }

    tellMoment() { this.tell("sc-moment", { clock: "", step: this.run.steps[this.state.moment] }); }

    tellToken(name) { this.tell("sc-token", { group: "token", token: name }); }

    keep() {
      this.kept = this.task.anchors[this.state.token];
      this.tellToken(this.kept);
    }

    /* Where the page's token stands in this task, null if it does not. */
    get atRest() {
      const known = this.task.anchors.indexOf(this.kept);
      return known < 0 ? null : known;
    }

    hearMoment({ clock, step }) {
      if (this.speaking || clock !== "") return;
      this.stop();
      this.standAt(nearest(this.run.steps, step, Math.log1p));
    }

    hearToken({ group, token }) {
      if (this.speaking || group !== "token") return;
      this.kept = token;
      this.preview = this.atRest;
      this.partner = null;
      this.mark();
    }

    // ---- address --------------------------------------------------------------------------

    get address() {
      const { task, state, run } = this;
      const view = { task: task.key, gamma: run.gamma, seed: run.seed, step: run.steps[state.moment],
        order: state.order, token: task.anchors[state.token] };
      return "#" + new URLSearchParams(view);
    }

    tellAddress() {
      clearTimeout(this.telling);
      history.replaceState(history.state, "", this.address);
    }

    /* The state that the page's address asks for, as far as it is there; false if it asks for none. */
    fromAddress() {
      const asked = new URLSearchParams(location.hash.slice(1));
      const task = this.tasks.findIndex(({ key }) => key === asked.get("task"));
      if (task < 0) return false;
      this.stop();
      const given = (name) => asked.has(name) && isFinite(asked.get(name));
      const number = (name, otherwise) => (given(name) ? Number(asked.get(name)) : otherwise);
      this.state.task = task;
      this.state.gamma = nearest(this.gammas, number("gamma", Infinity), (x) => Math.min(x, 1e6));
      this.state.seed = Math.max(0, this.seeds.indexOf(number("seed", this.seeds[0])));
      this.state.order = Math.max(0, Math.round(number("order", 0)));
      this.state.token = Math.max(0, this.task.anchors.indexOf(asked.get("token")));
      this.keepInRange(Math.max(0, number("step", 0)));
      this.keep();
      this.preview = this.atRest;
      this.draw();
      this.tellMoment();
      this.box.scrollIntoView({ block: "start" });
      return true;
    }

    // ---- drawing --------------------------------------------------------------------------

    draw() {
      if (!this.panels.plane.view.clientWidth) return; // folded away or on paper: nothing to fit
      this.drawnAt = this.box.clientWidth;
      const { task, state } = this;
      this.taskSelect.value = state.task;
      this.fillPills(this.gammaField, this.gammas.map(String), state.gamma);
      this.fillPills(this.seedField, this.seeds.map(String), state.seed);
      this.fillPills(this.tokenField, task.anchors, state.token, (k) => tokenColor(k, task.anchors.length));
      const orders = Array.from({ length: task.orders }, (_, m) => String(m));
      this.fillPills(this.orderField, orders, state.order, (m) => ORDER_COLORS[m]);
      this.rule.textContent = task.rule;
      this.slider.max = this.run.steps.length - 1;
      this.drawPlane();
      this.drawMatrix("embeddings");
      this.drawMatrix("signatures");
      this.drawCurves("loss", "Loss", [LOSS_COLOR], { low: 0 });
      const names = orders.map((m) => `order ${m}`);
      const share = { low: 0, high: 1, names };
      this.drawCurves("shares", "Share of each order in the gradient", ORDER_COLORS, share);
      const r = { high: 1, names: orders.map((m) => `r${SUBSCRIPT[m]}`) };
      this.drawCurves("alignment", "Alignment with the signature of each order", ORDER_COLORS, r);
      this.drawSignature();
      this.drawMoment();
    }

    drawMoment() {
      const { run, state } = this;
      const step = run.steps[state.moment];
      this.slider.value = state.moment;
      this.slider.setAttribute("aria-valuetext", `step ${count(step)}`);
      this.told.textContent = `step ${count(step)}`;
      this.link.href = this.address;
      this.showPlane();
      this.showMatrix("embeddings");
      this.showMatrix("signatures");
      for (const name of ["loss", "shares", "alignment"]) this.showCurves(name);
      this.showAnswers();
      this.mark(false);
    }

    /* Everything that shows which token is looked at. */
    mark(redraw = true) {
      this.tokenField.holder.querySelectorAll(".sx-pill").forEach((pill, k) => {
        pill.classList.toggle("sx-looked", k === this.token);
      });
      this.markPlane();
      for (const name of ["embeddings", "signatures"]) this.markMatrix(name);
      this.tellPair();
      if (redraw) {
        this.link.href = this.address;
        this.drawSignature();
        this.showAnswers();
      }
    }

    /* Pointing at an element looks at its token, a click keeps it. */
    reactsTo(node, token, partner = null) {
      node.addEventListener("pointerenter", (event) => {
        if (event.pointerType === "touch") return;
        this.look(token, partner);
      });
      node.addEventListener("pointerleave", () => this.look(null));
      if (!node.matches("label")) {
        node.addEventListener("click", () => {
          this.partner = partner;
          this.choose({ token });
          this.fillPills(this.tokenField, this.task.anchors, token);
        });
      }
    }

    look(token, partner = null) {
      const before = this.token;
      this.preview = token ?? this.atRest;
      this.partner = partner;
      if (this.token !== before) this.mark();
      else this.tellPair();
      this.tellToken(token === null ? this.kept : this.task.anchors[token]);
    }

    // ---- the plane ------------------------------------------------------------------------

    drawPlane() {
      const panel = this.panels.plane, { task } = this, n = task.anchors.length;
      panel.title.textContent = "Embeddings in a plane";
      const { svg, width } = canvas(panel, panel.view.clientWidth);
      const radius = Math.max(...this.values("points").values.map(Math.abs), 1e-9);
      const room = width / 2 - 16;
      const place = (value) => width / 2 + (room * value) / radius;
      add(svg, "rect", { class: "sx-frame", x: 0.5, y: 0.5, width: width - 1, height: width - 1, rx: 3 });
      const path = add(svg, "polyline", { class: "sx-path" });
      const points = task.anchors.map((name, k) => {
        const group = add(svg, "g", { class: "sx-point" });
        add(group, "circle", { class: "sx-hit", r: 14 });
        const dot = add(group, "circle", { class: "sx-dot", r: 5.5, fill: tokenColor(k, n) });
        const text = add(group, "text", { class: "sx-label", x: 8, y: -6 }, name);
        this.reactsTo(group, k);
        return { group, dot, text };
      });
      this.plane = { svg, path, points, place, spots: [] };
    }

    showPlane() {
      const { path, points, place, svg } = this.plane;
      const { values } = this.now("points");
      const spots = points.map((_, k) => [place(values[2 * k]), place(-values[2 * k + 1])]);
      points.forEach(({ group }, k) => {
        group.style.transform = `translate(${spots[k][0]}px,${spots[k][1]}px)`;
      });
      path.setAttribute("points", spots.map((spot) => spot.map((x) => x.toFixed(1)).join()).join(" "));
      this.plane.spots = spots;
      const share = this.now("plane").values[0];
      this.panels.plane.note.textContent = `${percent(share)} of the variance`;
      svg.setAttribute("aria-label", `Embeddings of ${this.task.anchors.join(", ")} in the plane of their ` +
        `first two principal components, which holds ${percent(share)} of the variance`);
    }

    /* Names are written where they do not run into each other, that of the token looked at first. */
    markPlane() {
      const { points, spots } = this.plane, named = [];
      const sequence = [this.token, ...points.keys()];
      for (const k of new Set(sequence)) {
        const [x0, y0] = spots[k];
        const free = named.every(([x, y]) => Math.abs(x - x0) > 13 || Math.abs(y - y0) > 12);
        if (free) named.push(spots[k]);
        points[k].text.style.display = free ? "" : "none";
        points[k].group.classList.toggle("sx-marked", k === this.token);
      }
    }

    // ---- similarity matrices --------------------------------------------------------------

    drawMatrix(kind) {
      const panel = this.panels[kind], { task } = this, n = task.anchors.length;
      const margin = 9 + 7 * Math.max(...task.anchors.map((name) => name.length));
      const side = Math.floor((panel.view.clientWidth - margin) / n);
      const { svg } = canvas(panel, panel.view.clientWidth);
      const cells = [];
      const written = thinned(task.anchors, side);
      for (let i = 0; i < n; i++) {
        if (written(i)) {
          const middle = (i + 0.5) * side;
          write(svg, "sx-tick", margin - 5, middle + 4, task.anchors[i], "end");
          write(svg, "sx-tick", margin + middle, n * side + 13, task.anchors[i], "middle");
        }
        for (let j = 0; j < n; j++) {
          const place = { x: margin + j * side, y: i * side, width: side, height: side };
          const cell = add(svg, "rect", { class: "sx-cell", ...place });
          this.reactsTo(cell, i, j);
          cells.push(cell);
        }
      }
      // Each mark twice, light under dark, so that it is seen on every colour.
      const marks = ["sx-halo", "sx-mark"].map((look) => ({
        row: add(svg, "rect", { class: look, width: n * side, height: side, x: margin }),
        column: add(svg, "rect", { class: look, width: side, height: n * side, y: 0 }),
      }));
      this[kind] = { svg, cells, marks, side, margin, n };
    }

    similarities(kind) {
      if (kind === "embeddings") return this.now("embeddings").values;
      if (this.state.order === 0) return read(this.task.similarity).values;
      return part(this.now("signatures"), this.state.order - 1).values;
    }

    showMatrix(kind) {
      const { svg, cells, n } = this[kind];
      const values = this.similarities(kind);
      cells.forEach((cell, k) => {
        const i = Math.floor(k / n), j = k % n;
        cell.setAttribute("fill", similarityColor(i === j ? 1 : values[pairIndex(i, j, n)]));
      });
      const panel = this.panels[kind], m = this.state.order;
      const mean = values.reduce((a, b) => a + b, 0) / values.length;
      if (kind === "embeddings") {
        panel.title.textContent = "Similarity of embeddings";
        panel.note.textContent = `mean cosine ${fixed(mean)}`;
      } else {
        const r = this.now("alignment").values[m];
        panel.title.textContent = `Similarity of order-${m} signatures`;
        panel.note.textContent = Number.isNaN(r)
          ? `r${SUBSCRIPT[m]} undefined: all pairs alike`
          : `alignment r${SUBSCRIPT[m]} = ${fixed(r)}`;
      }
      const range = `from ${fixed(Math.min(...values))} to ${fixed(Math.max(...values))}`;
      svg.setAttribute("aria-label", `${panel.title.textContent} of ${this.task.anchors.join(", ")}: off the ` +
        `diagonal ${range}, ${panel.note.textContent}`);
    }

    markMatrix(kind) {
      const { marks, side, margin } = this[kind];
      for (const { row, column } of marks) {
        row.setAttribute("y", this.token * side);
        column.setAttribute("x", margin + this.token * side);
      }
    }

    /* The cell under the pointer in words. */
    tellPair() {
      const { task, partner, token } = this, n = task.anchors.length;
      if (partner === null || partner >= n) {
        this.reading.textContent = "cosine similarity";
        return;
      }
      const value = (kind) => (token === partner ? 1 : this.similarities(kind)[pairIndex(token, partner, n)]);
      this.reading.textContent = `${task.anchors[token]} with ${task.anchors[partner]}: embeddings ` +
        `${fixed(value("embeddings"))}, signatures ${fixed(value("signatures"))}`;
    }

    // ---- one token's signature ------------------------------------------------------------

    drawSignature() {
      const panel = this.panels.signature, { task, token } = this, m = this.state.order;
      const name = task.anchors[token];
      panel.title.textContent = [
        `What ${name} alone says about the label`,
        `What ${name} and one more token say`,
        `What ${name} and two more tokens say`,
      ][m];
      this.answers = null;
      if (m === 0) this.drawBars(panel);
      else if (m === 1) this.drawStrip(panel);
      else this.drawTable(panel);
    }

    drawBars(panel) {
      const { task, token } = this;
      const { values } = part(read(task.signatures.order0), token);
      const { svg, width, height } = canvas(panel, 190);
      const left = 34, right = 4, bottom = 32, top = 20;
      const likeliest = Math.max(...read(task.signatures.order0).values);
      const answered = this.values("answers").values.reduce((a, b) => Math.max(a, b), 0);
      const highest = 1.05 * Math.max(likeliest, Math.min(answered, 1.5 * likeliest));
      const step = (width - left - right) / values.length;
      const y = (p) => height - bottom - (Math.min(p, highest) / highest) * (height - bottom - top);
      this.valueAxis(svg, left, width - right, y, [0, highest]);
      const written = thinned(task.labels, step);
      task.labels.forEach((label, k) => {
        const x = left + k * step;
        add(svg, "rect", { class: "sx-data", x: x + 0.12 * step, width: 0.76 * step, y: y(values[k]),
          height: Math.max(0, y(0) - y(values[k])), fill: ORDER_COLORS[0] });
        if (written(k)) {
          write(svg, "sx-tick", x + step / 2, height - bottom + 13, label, "middle");
        }
      });
      write(svg, "sx-axis", width - right, height - 3, "label y", "end");
      const line = add(svg, "polyline", { class: "sx-answers", stroke: MODEL_COLOR });
      const dots = task.labels.map(() => add(svg, "circle", { r: step > 9 ? 2.6 : 1.9, fill: MODEL_COLOR }));
      const key = add(svg, "text", { class: "sx-key", x: left, y: 11 });
      add(key, "tspan", { fill: "var(--sc-order-0)" }, "■ signature P(y | α)");
      add(key, "tspan", { fill: "var(--sx-model)", dx: 10 }, "● the model’s answers");
      svg.setAttribute("aria-label", `Bars: probability of each label given token ${task.anchors[token]}; ` +
        `dots: the same of the model’s answers`);
      panel.note.textContent = "";
      this.answers = { line, dots, x: (k) => left + (k + 0.5) * step, y };
    }

    /* The model's own zeroth-order signature, on top of the bars. */
    showAnswers() {
      if (!this.answers) return;
      const { line, dots, x, y } = this.answers;
      const { values } = part(this.now("answers"), this.token);
      dots.forEach((dot, k) => {
        dot.setAttribute("cx", x(k));
        dot.setAttribute("cy", y(values[k]));
      });
      const spots = dots.map((_, k) => `${x(k).toFixed(1)},${y(values[k]).toFixed(1)}`);
      line.setAttribute("points", spots.join(" "));
    }

    drawStrip(panel) {
      const { task, token } = this;
      const { shape: [ny, nx], values } = part(read(task.signatures.order1), token);
      const { svg, width, height } = canvas(panel, 190);
      const left = 34, right = 4, bottom = 32, top = 6;
      const w = (width - left - right) / nx, h = (height - bottom - top) / ny;
      const highest = Math.max(...values);
      for (let i = 0; i < ny; i++) {
        for (let j = 0; j < nx; j++) {
          const p = values[i * nx + j];
          if (p <= 0) continue;
          add(svg, "rect", { class: "sx-crisp", x: left + j * w, y: height - bottom - (i + 1) * h, width: w,
            height: h, fill: ORDER_COLORS[1], "fill-opacity": (0.12 + (0.88 * p) / highest).toFixed(2) });
        }
      }
      const box = { left, top, w, h, nx, ny, bottom: height - bottom };
      this.cellAxes(svg, box, task.contexts, task.labels);
      write(svg, "sx-axis", width - right, height - 3, "one more token x", "end");
      const name = task.anchors[token];
      svg.setAttribute("aria-label", `Joint probability of label and one more token given token ${name}`);
      panel.note.textContent = "label upwards; the stronger the colour, the more probable";
    }

    drawTable(panel) {
      const { task, token } = this;
      const { rows, columns, answers } = task.signatures.order2;
      const { svg, width, height } = canvas(panel, 190);
      const left = 34, right = 4, bottom = 32, top = 6;
      const w = (width - left - right) / columns.length, h = (height - bottom - top) / rows.length;
      rows.forEach((_, i) => columns.forEach((_, j) => {
        const label = answers[token][i][j];
        if (label < 0) return;
        const x = left + j * w, y = height - bottom - (i + 1) * h;
        const at = label / Math.max(task.labels.length - 1, 1);
        const fill = mixed(VIRIDIS, 0.08 + 0.82 * at);
        add(svg, "rect", { class: "sx-crisp", x, y, width: w, height: h, fill });
        if (w > 15 && h > 11) {
          const words = write(svg, "sx-answer", x + w / 2, y + h / 2 + 3.5, task.labels[label], "middle");
          words.setAttribute("fill", at > 0.55 ? "#111" : "#fff");
        }
      }));
      const box = { left, top, w, h, nx: columns.length, ny: rows.length, bottom: height - bottom };
      this.cellAxes(svg, box, columns, rows);
      write(svg, "sx-axis", width - right, height - 3, "two more tokens", "end");
      const name = task.anchors[token];
      svg.setAttribute("aria-label", `Label for every pair of further tokens given token ${name}`);
      panel.note.textContent = "each cell: the label, which two more tokens decide";
    }

    cellAxes(svg, { left, top, w, h, nx, ny, bottom }, across, up) {
      add(svg, "rect", { class: "sx-frame", x: left, y: top, width: nx * w, height: bottom - top });
      const [writtenX, writtenY] = [thinned(across, w), thinned(up.map(() => "0"), 0.75 * h)];
      across.forEach((name, k) => {
        if (writtenX(k)) write(svg, "sx-tick", left + (k + 0.5) * w, bottom + 13, name, "middle");
      });
      up.forEach((name, k) => {
        if (writtenY(k)) write(svg, "sx-tick", left - 4, bottom - (k + 0.5) * h + 4, name, "end");
      });
    }

    // ---- curves ---------------------------------------------------------------------------

    /* Lines and numbers at round values. */
    valueAxis(svg, left, right, y, [low, high]) {
      const size = 10 ** Math.floor(Math.log10(high - low));
      const step = [0.1, 0.2, 0.5, 1, 2].map((k) => k * size).find((s) => (high - low) / s < 4.5);
      for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9); k++) {
        const at = y(k * step), text = String(+(k * step).toPrecision(6)).replace("-", "−");
        add(svg, "line", { class: "sx-grid", x1: left, x2: right, y1: at, y2: at });
        write(svg, "sx-tick", left - 5, at + 4, text, "end");
      }
    }

    /* One thin line a seed of this gamma, the chosen seed bold; logarithmic time with room for step 0. */
    drawCurves(kind, title, colors, { low, high, names = [] }) {
      const panel = this.panels[kind], { run, task } = this;
      panel.title.textContent = title;
      const { svg, width, height } = canvas(panel, 170);
      const left = 34, right = names.length ? 54 : 14, top = 16, bottom = 32;
      const siblings = this.seeds.map((seed) => this.runOf(seed)).filter((other) => other && other !== run);
      // One range for all runs of the task, so that they can be compared.
      const every = task.runs.flatMap((other) => [...this.values(kind, other).values]);
      const known = every.filter((v) => !Number.isNaN(v));
      const lowest = low ?? Math.floor(4 * Math.min(0, ...known)) / 4;
      const highest = high ?? Math.ceil(2 * Math.max(...known)) / 2;
      const last = Math.max(...task.runs.map((other) => other.steps.at(-1)));
      const x = (step) => left + ((width - left - right) * Math.log1p(step)) / Math.log1p(last);
      const clamp = (v) => Math.min(Math.max(v, lowest), highest);
      const y = (v) => height - bottom - ((clamp(v) - lowest) / (highest - lowest)) * (height - bottom - top);
      this.valueAxis(svg, left, width - right, y, [lowest, highest]);
      for (let tick = 1; tick <= last; tick *= 10) {
        const place = Math.min(x(tick), width - 3.2 * count(tick).length);
        write(svg, "sx-tick", place, height - bottom + 13, count(tick), "middle");
      }
      write(svg, "sx-axis", width - right, height - 3, "step", "end");

      if (run.stair && run.stair < last) {
        const at = x(run.stair);
        add(svg, "line", { class: "sx-stair", x1: at, x2: at, y1: top - 3, y2: height - bottom });
        write(svg, "sx-tick sx-stair-label", at, top - 6, kind === "loss" ? "predicted t*" : "t*", "middle");
      }
      const rule = add(svg, "line", { class: "sx-moment", y1: top - 3, y2: height - bottom });
      const width0 = Math.max(1, names.length);
      const dots = [];
      for (let m = 0; m < width0; m++) {
        for (const other of [...siblings, run]) {
          const { values } = this.values(kind, other);
          const spots = [];
          other.steps.forEach((step, k) => {
            const v = values[k * width0 + m];
            if (!Number.isNaN(v)) spots.push(`${x(step).toFixed(1)},${y(v).toFixed(1)}`);
          });
          const bold = other === run;
          const look = { class: bold ? "sx-line" : "sx-line sx-other", stroke: colors[m] };
          if (spots.length) add(svg, "polyline", { ...look, points: spots.join(" ") });
        }
        dots.push(add(svg, "circle", { class: "sx-dot", r: 3.6, fill: colors[m] }));
      }
      this.endNames(svg, kind, names, width - right + 5, y, width0);
      svg.setAttribute("aria-label", `${title} against the step of training, seed ${run.seed} and the others ` +
        `of γ = ${run.gamma}`);
      const area = { x: left, y: 0, width: width - left - right, height: height - bottom };
      const catcher = add(svg, "rect", { class: "sx-catch", ...area });
      this.dragsTime(catcher, svg, x);
      this[kind] = { rule, dots, x, y, count: width0 };
    }

    /* Curves are named at their ends, names kept apart. */
    endNames(svg, kind, names, x, y, width) {
      const { values } = this.values(kind);
      const ends = names.map((name, m) => ({ name, m, at: y(values[values.length - width + m]) }))
        .filter(({ at }) => !Number.isNaN(at)).sort((a, b) => a.at - b.at);
      ends.forEach((end, k) => { if (k) end.at = Math.max(end.at, ends[k - 1].at + 13); });
      const over = ends.length ? Math.max(0, ends.at(-1).at - 138) : 0;
      for (const { name, m, at } of ends) {
        write(svg, "sx-end", x, at - over + 4, name).setAttribute("fill", `var(--sc-order-${m})`);
      }
    }

    showCurves(kind) {
      const { rule, dots, x, y, count: width } = this[kind];
      const { values } = this.now(kind);
      const at = x(this.run.steps[this.state.moment]).toFixed(1);
      rule.setAttribute("x1", at);
      rule.setAttribute("x2", at);
      dots.forEach((dot, m) => {
        const v = values.length === width ? values[m] : NaN;
        dot.style.display = Number.isNaN(v) ? "none" : "";
        if (Number.isNaN(v)) return;
        dot.setAttribute("cx", at);
        dot.setAttribute("cy", y(v).toFixed(1));
      });
      this.panels[kind].note.textContent = "now " + this.inWords(kind, [...values]);
    }

    inWords(kind, values) {
      if (kind === "loss") {
        const accuracy = this.now("accuracy").values[0];
        return `${fixed(values[0])}; accuracy ${percent(accuracy)}, by chance ${percent(this.task.chance)}`;
      }
      const name = (m) => (kind === "shares" ? `order ${m} ` : `r${SUBSCRIPT[m]} `);
      return values.map((v, m) => name(m) + (kind === "shares" ? percent(v) : fixed(v))).join(", ");
    }

    /* Time is set by pointing into a curve as well as by the slider. */
    dragsTime(catcher, svg, x) {
      const set = (event) => {
        const at = event.clientX - svg.getBoundingClientRect().left;
        const positions = this.run.steps.map(x);
        this.stop();
        this.move(nearest(positions, at));
      };
      catcher.addEventListener("pointerdown", (event) => {
        catcher.setPointerCapture(event.pointerId);
        set(event);
      });
      catcher.addEventListener("pointermove", (event) => { if (event.buttons) set(event); });
    }

    // ---- taking data along ----------------------------------------------------------------

    /* The run's curves at every moment, and at this moment what the other pictures show. */
    table() {
      const { task, run, state } = this, n = task.anchors.length, rows = [];
      const row = (step, quantity, first, second, value) => {
        const known = Number.isNaN(value) ? "" : value;
        rows.push([task.key, run.gamma, run.seed, step, quantity, first, second, known]);
      };
      run.steps.forEach((step, k) => {
        for (const name of ["loss", "accuracy"]) row(step, name, "", "", this.values(name).values[k]);
        for (const name of ["shares", "alignment"]) {
          part(this.values(name), k).values.forEach((value, m) => row(step, name, `order ${m}`, "", value));
        }
      });
      const step = run.steps[state.moment];
      const points = this.now("points").values;
      task.anchors.forEach((name, k) => {
        row(step, "component 1", name, "", points[2 * k]);
        row(step, "component 2", name, "", points[2 * k + 1]);
      });
      for (const kind of ["embeddings", "signatures"]) {
        const of = kind === "embeddings" ? kind : `order-${state.order} signatures`;
        const values = this.similarities(kind);
        for (let i = 0; i < n; i++) {
          for (let j = i + 1; j < n; j++) {
            row(step, `similarity of ${of}`, task.anchors[i], task.anchors[j], values[pairIndex(i, j, n)]);
          }
        }
      }
      const zeroth = part(read(task.signatures.order0), state.token).values;
      const answers = part(this.now("answers"), state.token).values;
      task.labels.forEach((label, y) => {
        row(step, "signature of order 0", task.anchors[state.token], label, zeroth[y]);
        row(step, "answers of the model", task.anchors[state.token], label, answers[y]);
      });
      return [["task", "gamma", "seed", "step", "quantity", "first", "second", "value"], ...rows];
    }

    download() {
      const [head, ...rows] = this.table();
      const name = `staircase-${this.task.key}-gamma-${this.run.gamma}-seed-${this.run.seed}`;
      window.staircaseCharts.saveCsv(name, { head, rows: () => rows });
    }
  }

  const explorers = [];
  window.staircaseExplorers = explorers;
  /* A box for recordings that a kernel has just made (live.js); drawn once it is in the page. */
  explorers.box = (recorded) => {
    const box = Object.assign(document.createElement("div"), { className: "sc-explorer" });
    const data = Object.assign(document.createElement("script"), { className: "sc-recorded" });
    data.type = "application/json";
    data.textContent = JSON.stringify(recorded);
    box.append(data);
    requestAnimationFrame(() => explorers.push(new Explorer(box)));
    return box;
  };
  function start() {
    for (const box of document.querySelectorAll(".sc-explorer")) explorers.push(new Explorer(box));
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
