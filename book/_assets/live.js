/* Live code: turns a page's code cells into editors whose code runs in a kernel.

   Only pages that come from `make live` have it (staircase_lib/live.py): that server and these pages
   share an address, so no other site is asked for anything, and a published page has no button that
   leads nowhere. Connection, kernel, widgets and outputs are thebe's; what a page needs of its own is
   here: cells and outputs found in the book's markup, which cells have to run first, charts drawn by
   charts.js, formulas set by the page's MathJax, and what is told when something ends. */
(function () {
  "use strict";

  const page = document.documentElement;
  const STATIC = new URL(".", document.currentScript.src);
  const KEY = "staircase-live-key";
  const VEGALITE = "application/vnd.vegalite.v5+json";
  const RECORDINGS = "application/vnd.staircase.recordings+json";
  if (!page.dataset.live) return;

  window.FontAwesomeConfig = { autoReplaceSvg: "nest" }; // or icons replace what widgets hold on to

  // The key comes behind the address's `#`, and leaves it at once.
  const given = location.hash.match(/^#key=([\w-]+)$/);
  if (given) {
    localStorage.setItem(KEY, given[1]);
    history.replaceState(null, "", location.pathname + location.search);
  }

  const OPEN_AGAIN = "Open the address that `make live` printed last.";
  const GONE =
    "The server has ended, and with it the kernel. What you have written stays here until you go " +
    "back; to run it, start `make live` again and open the address that it prints.";
  const DIED =
    "The kernel was ended (killed, out of memory, or by its own code) and a new one has started. It " +
    "knows nothing yet: the next run begins at the top.";

  class Problem extends Error {}

  let live = null; // the running session of this page: see open()

  // ---- the server -------------------------------------------------------------------------

  async function ask(path, options = {}) {
    const key = localStorage.getItem(KEY);
    if (!key) throw new Problem("This tab has no key to the server. " + OPEN_AGAIN);
    let reply;
    try {
      reply = await fetch("/api/" + path, { ...options, headers: { Authorization: "token " + key } });
    } catch {
      throw new Problem(GONE);
    }
    if (reply.status === 401 || reply.status === 403) {
      throw new Problem("The server does not accept this tab's key: it was started anew. " + OPEN_AGAIN);
    }
    if (!reply.ok) throw new Problem("The server answered " + reply.status + " " + reply.statusText + ".");
    return reply;
  }

  function load(path) {
    const url = new URL(path, STATIC).href;
    const style = path.endsWith(".css");
    return new Promise((resolve, reject) => {
      const element = document.createElement(style ? "link" : "script");
      element.onload = () => resolve();
      element.onerror = () => reject(new Problem("The server does not give " + path + "."));
      if (style) Object.assign(element, { rel: "stylesheet", href: url });
      else element.src = url;
      document.head.append(element);
    });
  }

  // ---- outputs ----------------------------------------------------------------------------

  let mathjax = null;
  async function typeset(node) {
    if (!window.MathJax?.typesetPromise) {
      window.MathJax = window.MathJax || {};
      mathjax = mathjax || load("vendor/mathjax/tex-mml-chtml.js").then(() => window.MathJax.startup.promise);
      await mathjax;
    }
    for (const inner of node.querySelectorAll(".math")) inner.classList.add("mathjax_process");
    await window.MathJax.typesetPromise([node]);
  }

  const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
  const plain = (text) => text.replace(/[&<>]/g, (sign) => ENTITIES[sign]);
  const display = (tex) => '<div class="math notranslate">\\[' + plain(tex) + "\\]</div>";
  const inline = (tex) => '<span class="math notranslate">\\(' + plain(tex) + "\\)</span>";

  /* MyST as far as outputs use it: Markdown, formulas with a label or without, references. */
  function fromMarkdown(text) {
    const kept = [];
    const keep = (html) => "\ue000" + (kept.push(html) - 1) + "\ue001";
    const marked = text
      .replace(/\$\$([\s\S]+?)\$\$(?:[ \t]*\([\w:-]+\))?/g, (_, tex) => keep(display(tex)))
      .replace(/\$([^$\n]+?)\$/g, (_, tex) => keep(inline(tex)))
      .replace(/\{[\w:]+\}`(?:([^`<]*?) ?<[^`>]*>|([^`]*))`/g, (_, shown, label) =>
        keep(plain(shown || label)));
    return window.marked.parse(marked).replace(/\ue000(\d+)\ue001/g, (_, k) => kept[Number(k)]);
  }

  function fromLatex(text) {
    const tex = text.trim().replace(/^\$\$?(?:\\displaystyle)?|\$\$?$/g, "");
    return display(tex.trim());
  }

  /* The bundle does not name its class of renderers; the one for text leads there. */
  function registerRenderers(rendermime) {
    const Renderer = Object.getPrototypeOf(rendermime.createRenderer("text/plain").constructor);
    const add = (mime, fill) => {
      class PageRenderer extends Renderer {
        render(model) {
          this.node.classList.add("output");
          return fill(this.node, model.data[mime]);
        }
      }
      const createRenderer = (options) => new PageRenderer(options);
      rendermime.addFactory({ safe: true, mimeTypes: [mime], createRenderer }, 0);
    };
    add(VEGALITE, (node, spec) => {
      node.append(window.staircaseCharts.box(spec));
    });
    if (window.staircaseExplorers) {
      add(RECORDINGS, (node, recorded) => {
        node.append(window.staircaseExplorers.box(recorded));
      });
    }
    add("text/html", (node, html) => {
      node.classList.add("text_html");
      node.innerHTML = html;
    });
    add("text/markdown", (node, text) => {
      node.innerHTML = fromMarkdown(text);
      return typeset(node);
    });
    add("text/latex", (node, text) => {
      node.innerHTML = fromLatex(text);
      return typeset(node);
    });
    rendermime.latexTypesetter = { typeset }; // for widgets whose text holds formulas
  }

  // ---- cells ------------------------------------------------------------------------------

  const element = (name, className, text = "") => {
    const made = document.createElement(name);
    made.className = className;
    made.textContent = text;
    return made;
  };

  function button(text, title, act) {
    const made = element("button", "sc-live-action", text);
    made.type = "button";
    made.title = title;
    made.addEventListener("click", act);
    return made;
  }

  /* A place for an editor, and one for outputs beside what the page shows so far, which comes back. */
  function prepareCell(box) {
    const input = box.querySelector(".cell_input");
    const place = element("div", "");
    const output = element("div", "sc-live-output cell_output");
    const shown = [...box.querySelectorAll(".cell_output")];
    const figure = box.querySelector("figure");
    const replaced = figure ? [...figure.children].filter((c) => c.tagName !== "FIGCAPTION") : shown;
    input.after(place);
    input.classList.add("sc-live-hidden");
    if (figure) figure.prepend(output);
    else if (shown.length) shown[shown.length - 1].after(output);
    else box.append(output);
    const tools = element("div", "sc-live-tools");
    const details = box.querySelector(":scope > details");
    const around = details && details.contains(input) ? details : null;
    if (around) around.after(tools);
    const source = input.querySelector("pre").textContent.trimEnd();
    return { box, input, place, output, replaced, tools, around, source };
  }

  /* The cell with the small sizes stands behind the parameters and counts if it is wanted. */
  function smallSizes(about) {
    const parameters = [...document.querySelectorAll(".cell.tag_parameters")].pop();
    if (!parameters || !about.small) return null;
    const box = element("div", "cell sc-live-small sc-live-hidden");
    const input = element("div", "cell_input");
    input.append(element("pre", "", about.small));
    box.append(input);
    parameters.after(box);
    return box;
  }

  function mark(cell, state, text = "") {
    cell.tools.dataset.state = state;
    cell.told.textContent = text;
  }

  function buildCells(about, rendermime, config) {
    const small = smallSizes(about);
    const cells = [...document.querySelectorAll(".bd-article .cell")]
      .filter((box) => box.querySelector(".cell_input pre"))
      .map(prepareCell);
    const blocks = cells.map((cell, k) => ({ id: "sc-live-" + k, source: cell.source }));
    const notebook = window.thebeCore.api.setupNotebookFromBlocks(blocks, config, rendermime);
    const options = { codeMirrorConfig: { lineNumbers: false, lineWrapping: true } };
    const items = blocks.map((block, k) => ({
      id: block.id,
      placeholders: { source: cells[k].place, output: cells[k].output },
    }));
    window.thebe.renderAllCells(options, notebook, items).forEach((item, k) => {
      const cell = cells[k];
      cell.thebe = notebook.cells[k];
      cell.editor = item.ui.cell;
      cell.mirror = item.ui.editor.querySelector(".CodeMirror").CodeMirror;
      cell.mirror.getInputField().setAttribute("aria-label", "Code of cell " + (k + 1));
      cell.mirror.addKeyMap({ Tab: false, "Shift-Tab": false }); // the keyboard gets out again
      cell.thebe.execute = () => runTo(cell); // Shift-Enter
      cell.ran = null;
      cell.told = element("span", "sc-live-told");
      const title = "Run this cell, after those above it that have not run as they read now (Shift+Enter)";
      const run = button("▶ Run", title, () => runTo(cell));
      cell.tools.append(run, cell.told);
      if (!cell.around) cell.editor.after(cell.tools);
      cell.used = () => cell.box !== small || !small.classList.contains("sc-live-hidden");
    });
    return { cells, small };
  }

  function restoreCells({ cells, small }) {
    for (const cell of cells) {
      cell.editor.remove();
      cell.tools.remove();
      cell.output.remove();
      cell.input.classList.remove("sc-live-hidden");
      for (const part of cell.replaced) part.classList.remove("sc-live-hidden");
    }
    small?.remove();
    document.dispatchEvent(new Event("sc-output"));
  }

  // ---- running ----------------------------------------------------------------------------

  const source = (cell) => cell.mirror.getValue();
  const isPending = (cell) => cell.used() && cell.ran !== source(cell);

  function forget(session) {
    for (const cell of session.cells) cell.ran = null;
  }

  function runTo(cell) {
    const k = live.cells.indexOf(cell);
    return run(live.cells.slice(0, k).filter(isPending).concat(cell));
  }

  const runAll = () => run(live.cells.filter((cell) => cell.used()));

  /* One after the other, to the first that fails; runs that are asked for meanwhile wait. */
  function run(cells) {
    const session = live;
    if (!session || session.ended) return Promise.resolve();
    for (const cell of cells) mark(cell, "waiting", "waiting");
    const turn = session.turn;
    session.queue = session.queue.then(async () => {
      let going = turn === session.turn && !session.ended;
      for (const [k, cell] of cells.entries()) {
        const number = session.cells.indexOf(cell) + 1;
        if (going) tell(session, `Cell ${number} runs, ${k + 1} of ${cells.length}.`);
        if (going) going = await runCell(session, cell);
        else if (cell.tools.dataset.state === "waiting") mark(cell, "");
      }
      const stopped = session.note || "Stopped at a cell that failed.";
      if (!session.ended && session === live) tell(session, going ? "Ready." : stopped);
      session.note = "";
    });
    return session.queue;
  }

  async function runCell(session, cell) {
    const code = source(cell);
    const started = performance.now();
    mark(cell, "running", "running…");
    let status = "ended";
    try {
      const future = session.session.kernel.requestExecute({ code });
      cell.thebe.area.future = future;
      for (const part of cell.replaced) part.classList.add("sc-live-hidden");
      future.done.catch(() => {}); // a kernel that ends cancels it, which is told elsewhere
      const reply = await Promise.race([future.done, session.broken]);
      status = reply.content.status;
    } catch {
      mark(cell, "failed", "ended before it was done");
      return false;
    }
    document.dispatchEvent(new Event("sc-output"));
    const seconds = ((performance.now() - started) / 1000).toFixed(1);
    cell.ran = status === "ok" ? code : null;
    if (status === "ok") mark(cell, "done", `ran in ${seconds} s`);
    else mark(cell, "failed", `failed after ${seconds} s`);
    return status === "ok";
  }

  // ---- one session ------------------------------------------------------------------------

  function tell(session, text) {
    session.bar.querySelector(".sc-live-status").textContent = text;
  }

  function buildBar() {
    const bar = element("div", "sc-live-bar");
    bar.setAttribute("role", "region");
    bar.setAttribute("aria-label", "Live code");
    const status = element("span", "sc-live-status", "Connecting…");
    status.setAttribute("role", "status");
    bar.append(status);
    const actions = element("span", "sc-live-actions");
    bar.append(actions);
    (document.querySelector(".bd-header-article") || document.querySelector(".bd-article")).append(bar);
    return { bar, actions };
  }

  function fillBar(session, about) {
    const dropRuns = (text) => {
      session.turn += 1;
      session.note = text;
    };
    const actions = [
      button("Run all", "Run every cell of this page from the top", runAll),
      button("Stop", "Interrupt the cell that runs", async () => {
        dropRuns("Stopped.");
        await session.session.kernel.interrupt();
      }),
      button("Restart", "Start a new kernel; all variables are forgotten", async () => {
        dropRuns("Restarted.");
        session.break_();
        forget(session);
        tell(session, "Restarting…");
        session.restarting = true;
        await session.session.restart();
        session.restarting = false;
        renewBreak(session);
        for (const cell of session.cells) mark(cell, "");
        tell(session, "Ready. A new kernel: the next run begins at the top.");
      }),
    ];
    if (session.small) {
      const label = element("label", "sc-live-sizes");
      const box = document.createElement("input");
      box.type = "checkbox";
      label.title = "Sizes of profile smoke: everything runs in seconds, and its numbers mean nothing";
      label.append(box, " small sizes");
      box.addEventListener("change", () => {
        session.small.classList.toggle("sc-live-hidden", !box.checked);
        forget(session);
        session.cells.forEach((cell) => cell.mirror.refresh());
        const quick = "Small sizes: quick, and the numbers mean nothing.";
        tell(session, box.checked ? quick : "Sizes of the published page.");
      });
      actions.unshift(label);
    }
    session.actions.prepend(...actions);
  }

  function renewBreak(session) {
    session.broken = new Promise((_, reject) => (session.break_ = () => reject(new Problem("ended"))));
    session.broken.catch(() => {});
  }

  async function open(trigger) {
    const about = JSON.parse(document.getElementById("sc-live-page").textContent);
    const session = { turn: 0, queue: Promise.resolve(), ended: false, note: "", cells: [], small: null };
    live = session;
    renewBreak(session);
    page.dataset.live = "starting";
    trigger.disabled = true;
    document.querySelector(".sc-live-bar")?.remove();
    Object.assign(session, buildBar());
    const title = "End the kernel and show the page as it was";
    session.actions.append(button("Back to the page", title, () => close(session)));
    try {
      await ask("status");
      await Promise.all(
        ["vendor/thebe/thebe.css", "vendor/thebe/index.js", "vendor/marked.js"].map((path) =>
          document.querySelector(`[src$="${path}"], [href$="${path}"]`) ? null : load(path)),
      );
      if (live !== session) return;
      await connect(session, about);
      if (live !== session) return void session.server.dispose();
      fillBar(session, about);
      const size = about.seconds ? " At full size this page took " + Math.ceil(about.seconds) + " s." : "";
      tell(session, "Ready. Change a cell and press Run; what it needs from above runs first." + size);
      page.dataset.live = "ready";
    } catch (error) {
      if (live !== session) return;
      if (!(error instanceof Problem)) console.error("live code:", error);
      const told = error.message || error;
      fail(session, error instanceof Problem ? told : "Live code did not start: " + told);
      restoreCells(session);
      session.cells = [];
    }
  }

  async function connect(session, about) {
    const { api } = window.thebeCore;
    const config = api.makeConfiguration({
      useBinder: false,
      serverSettings: { baseUrl: location.origin, token: localStorage.getItem(KEY), appendToken: true },
      savedSessionOptions: { enabled: false },
    });
    const rendermime = api.makeRenderMimeRegistry({});
    registerRenderers(rendermime);
    session.server = api.makeServer(config);
    session.server.connectToJupyterServer();
    await session.server.ready;
    // A name of its own, or two tabs would share a kernel; its folder is the chapter's.
    const path = about.page + "-" + crypto.getRandomValues(new Uint32Array(1))[0].toString(36) + ".ipynb";
    tell(session, "Starting a kernel…");
    session.session = await session.server.startNewSession(rendermime, { kernelName: "python3", path });
    const { kernel, manager } = session.session;
    // Widgets of other packages would come from a content network; the book has its own or none.
    const refuse = (names, _, reject) => reject(new Error("the book does not serve " + names[0]));
    const require = Object.assign(refuse, { defined: () => true });
    manager._loader = { requested: true, ready: Promise.resolve({ require }) };
    kernel.statusChanged.connect((_, status) => onKernel(session, status));
    kernel.connectionStatusChanged.connect((_, status) => {
      if (status !== "connected") watch(session);
    });
    await kernel.info;
    Object.assign(session, buildCells(about, rendermime, config));
    for (const cell of session.cells) {
      cell.thebe.session = session.session;
      cell.mirror.refresh();
    }
  }

  function onKernel(session, status) {
    if (session.ended || session !== live) return;
    page.dataset.kernel = status;
    if (session.restarting || (status !== "autorestarting" && status !== "dead")) return;
    session.turn += 1;
    session.note = DIED;
    session.break_();
    renewBreak(session);
    forget(session);
    if (status === "dead") fail(session, "The kernel ended and did not start again: go back to the page.");
    else tell(session, DIED);
  }

  /* A connection that is lost can come back; a server that does not answer has ended. */
  async function watch(session) {
    if (session.watching || session.ended) return;
    session.watching = true;
    try {
      await ask("status");
      session.watching = false;
    } catch (error) {
      if (session === live && !session.ended) fail(session, error.message);
    }
  }

  function fail(session, text) {
    session.ended = true;
    session.break_();
    session.server?.dispose();
    for (const cell of session.cells) if (cell.tools.dataset.state === "waiting") mark(cell, "");
    for (const action of session.actions.querySelectorAll(":is(button, input)")) action.disabled = true;
    const back = session.actions.querySelector("button:last-of-type");
    back.disabled = false;
    tell(session, text);
    page.dataset.live = "failed";
  }

  function close(session) {
    if (session !== live) return;
    live = null;
    if (!session.ended && session.session) endSession(session);
    session.ended = true;
    session.break_();
    session.server?.dispose();
    restoreCells(session);
    session.bar.remove();
    page.dataset.live = "off";
    const trigger = document.querySelector(".sc-live-start");
    trigger.disabled = false;
    trigger.focus();
  }

  function endSession(session) {
    ask("sessions/" + session.session.id, { method: "DELETE", keepalive: true }).catch(() => {});
  }

  // ---- the button -------------------------------------------------------------------------

  document.addEventListener("DOMContentLoaded", () => {
    const header = document.querySelector(".article-header-buttons");
    if (!header || !document.getElementById("sc-live-page")) return;
    const trigger = element("button", "sc-live-action sc-live-start", "▶ Live code");
    trigger.type = "button";
    trigger.title = "Make the code of this page editable, and run it on this machine";
    trigger.addEventListener("click", () => open(trigger));
    header.prepend(trigger);
  });
  load("live.css");

  // Whoever leaves the page leaves no kernel behind.
  window.addEventListener("pagehide", () => {
    if (live) close(live);
  });
})();
