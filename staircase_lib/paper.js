/* Readies a built page for paper, in a browser that shows it as it prints at the paper's width
   (staircase_lib/paper.py): opens what is folded, draws the charts, shrinks what is too wide, and says
   what still leaves the column, which headings there are, and where links can lead. */
async () => {
  "use strict";

  const SMALLEST = 0.5; // of the size on the screen
  const SHORT = 260; // pixels of code that stay on one sheet
  const article = document.querySelector(".bd-article") || document.body;
  const column = article.getBoundingClientRect();
  const box = (element) => element.getBoundingClientRect();
  const shown = (element) => element.getClientRects().length > 0;
  const words = (element) => {
    const copy = element.cloneNode(true);
    for (const extra of copy.querySelectorAll(".headerlink, script, style")) extra.remove();
    return copy.textContent.trim().replace(/\s+/g, " ");
  };

  const named = (element) =>
    `${element.tagName.toLowerCase()}.${element.getAttribute("class") || ""}: ${words(element).slice(0, 60)}`;

  await (window.MathJax?.startup?.promise ?? null);
  for (const folded of article.querySelectorAll("details:not(.hide)")) folded.open = true;
  for (const folded of article.querySelectorAll(".toggle-hidden")) folded.classList.remove("toggle-hidden");
  for (const image of article.querySelectorAll("img[loading=lazy]")) image.loading = "eager";
  await window.staircaseCharts?.drawAll();
  await document.fonts.ready;
  const images = [...article.querySelectorAll("img")].filter(shown);
  await Promise.all(images.map((image) => image.decode().catch(() => null)));

  // What is too wide becomes smaller as a whole, like a picture.
  const clipped = [];
  const zoomOf = (element) => Number(element.style.zoom) || 1;
  for (const wide of article.querySelectorAll("mjx-container, table, .sc-claim, pre, dt.sig")) {
    let around = wide.parentElement;
    while (getComputedStyle(around).display.startsWith("inline")) around = around.parentElement;
    for (let attempt = 0; attempt < 4 && shown(wide); attempt++) {
      const style = getComputedStyle(around);
      const room = around.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
      const needed = Math.max(box(wide).width, wide.scrollWidth * zoomOf(wide));
      if (needed <= room + 0.5 || room <= 0) break;
      wide.style.zoom = zoomOf(wide) * (room - 0.5) / needed;
    }
    if (zoomOf(wide) < SMALLEST) clipped.push(`too small to read, ${named(wide)}`);
  }

  for (const code of article.querySelectorAll("pre")) {
    const frame = code.closest(".cell_input") || code.closest(".highlight") || code;
    if (code.clientHeight < SHORT) frame.style.breakInside = "avoid";
  }

  // What is still cut or leaves the column. Marks of a chart and parts of a formula go with their box.
  for (const element of article.querySelectorAll("*")) {
    const inPicture = element.closest("mjx-container, svg") !== null;
    if (inPicture && !element.matches("mjx-container, svg:not(svg svg)")) continue;
    if (!shown(element) || element.matches(".visually-hidden, .sr-only, script, style")) continue;
    const style = getComputedStyle(element);
    const scrolls = style.overflowX !== "visible" && element.clientWidth > 0;
    const cuts = scrolls && element.scrollWidth > element.clientWidth + 1;
    if (cuts || box(element).right > column.right + 1.5 || box(element).left < column.left - 30) {
      clipped.push(named(element));
    }
  }
  for (const chart of article.querySelectorAll(".sc-chart")) {
    if (shown(chart) && chart.dataset.state !== "drawn") clipped.push("a chart that was not drawn");
  }

  // Chromium keeps the place of an element in the PDF if a link of the page leads to it.
  const hidden = {};
  const links = document.createElement("div");
  links.style.display = "none";
  for (const target of document.querySelectorAll(".bd-article [id]")) {
    if (target.closest("mjx-container, svg")) continue;
    let place = target;
    while (place && !(place.id && shown(place))) place = place.parentElement;
    if (!place) continue;
    if (place !== target) hidden[target.id] = place.id;
    const link = document.createElement("a");
    link.href = "#" + encodeURIComponent(place.id);
    links.append(link);
  }
  document.body.append(links);

  // A link to no place of its own page is not in the PDF at all. name=value is a state, not a place.
  const lost = [...article.querySelectorAll("a[href*='#']")].filter((link) => {
    const name = decodeURIComponent(link.hash.slice(1));
    const inside = link.href.split("#")[0] === location.href.split("#")[0];
    return inside && shown(link) && name && !name.includes("=") && !document.getElementById(name);
  }).map((link) => decodeURIComponent(link.hash));

  const headings = [...article.querySelectorAll("h1, h2")].filter(shown).map((heading) => ({
    level: Number(heading.tagName[1]),
    text: words(heading),
    id: heading.closest("section[id]")?.id ?? "",
  }));
  return { clipped, lost, hidden, headings };
}
