"use strict";
// Keeps the page up to date: fetches its fragments, and changes only what differs, so that focus, scroll, selection
// and what is being typed stay. Filters, order, period and the open job are in the address.

const EVERY_MS = 1000; // between two questions; a worker reports about once a second
const LONGEST_PAUSE_MS = 5000; // while the server does not answer
const FIGURES_EVERY_MS = 30000;
const TYPING_MS = 120;

const place = document.getElementById("dashboard");
const view = place.dataset.view;
let tag = "";
let timer = 0;
let pause = EVERY_MS;
let asked = 0; // the number of the last question

// -- changing the page ----------------------------------------------------------------------

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id : "";
}

function isSame(old, fresh) {
  return old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);
}

function morph(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if (old.classList.contains("lazy") || (old === document.activeElement && old.nodeName === "SELECT")) return;
  if (old.classList.contains("new")) fresh.classList.add("new"); // it shines until its animation ends
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    const isKept = name === "open" || name === "value"; // unfolded and typed by the user
    if (!isKept && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  morphChildren(old, fresh);
}

function morphChildren(old, fresh) {
  const wanted = new Set([...fresh.childNodes].map(keyOf).filter(Boolean));
  const keyed = new Map();
  for (const child of [...old.childNodes]) {
    const key = keyOf(child);
    if (key && wanted.has(key)) keyed.set(key, child);
    else if (key) child.remove();
  }
  let next = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const key = keyOf(child);
    const found = key ? keyed.get(key) : next && !keyOf(next) && isSame(next, child) ? next : null;
    if (found && found.nodeName === child.nodeName) {
      if (found === next) next = next.nextSibling;
      else old.insertBefore(found, next);
      morph(found, child);
    } else {
      child.classList?.toggle("new", child.classList.contains("flash"));
      old.insertBefore(child, next);
    }
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

// Replaces the content of a place in the page. A focused row that was moved keeps the focus; if it is gone, its list
// gets it, so that the keyboard does not begin at the top of the page again.
function show(target, html) {
  const focused = target.contains(document.activeElement) ? document.activeElement : null;
  const scroll = [...target.querySelectorAll(".scroll")].map((part) => part.scrollTop);
  const template = document.createElement("template");
  template.innerHTML = html;
  morphChildren(target, template.content);
  [...target.querySelectorAll(".scroll")].forEach((part, n) => (part.scrollTop = scroll[n] || 0));
  if (!focused || document.activeElement === focused) return;
  const next = focused.isConnected ? focused : target.querySelector("a.open");
  if (next) next.focus({ preventScroll: true });
}

const shown = {}; // the last text of each fragment

function showFragments(fragments) {
  for (const [name, html] of Object.entries(fragments)) {
    if (shown[name] === html) continue;
    shown[name] = html;
    show(document.getElementById(name), html);
  }
  watchFigures();
}

// -- asking the server ----------------------------------------------------------------------

async function refresh() {
  clearTimeout(timer);
  const number = ++asked;
  const address = location.search;
  try {
    const answer = await fetch(`fragments/${view}${address}`, {
      headers: tag ? { "If-None-Match": tag } : {},
      cache: "no-store",
    });
    if (number !== asked) return; // another question is under way
    if (answer.status !== 304) {
      if (!answer.ok) throw new Error(answer.statusText);
      const fragments = await answer.json();
      if (number !== asked) return;
      tag = answer.headers.get("ETag");
      showFragments(fragments);
    }
    document.getElementById("offline").hidden = true;
    pause = EVERY_MS;
  } catch {
    if (number !== asked) return;
    document.getElementById("offline").hidden = false;
    tag = "";
    pause = Math.min(LONGEST_PAUSE_MS, pause * 1.5);
  }
  if (!document.hidden) timer = setTimeout(refresh, pause);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden) refresh();
});

// -- the address ----------------------------------------------------------------------------

function go(address, replace = false) {
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  tag = "";
  return refresh();
}

// What a form's fields say becomes part of the address.
function readForm(form) {
  const params = new URLSearchParams(location.search);
  for (const field of form.elements) if (field.name && field.type !== "submit") params.delete(field.name);
  for (const [name, value] of new FormData(form)) if (value) params.append(name, value);
  params.delete("page");
  const text = params.toString();
  return location.pathname + (text ? `?${text}` : "");
}

// And the other way round, after a link or the browser's Back changed the address.
function fillForms() {
  const params = new URLSearchParams(location.search);
  for (const field of document.querySelectorAll("form[data-filters] [name]")) {
    if (field.type === "checkbox") field.checked = params.getAll(field.name).includes(field.value);
    else if (field.type !== "submit") field.value = params.get(field.name) || field.querySelector("option")?.value || "";
  }
}

let typing = 0;
document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-filters]");
  if (!form) return;
  clearTimeout(typing);
  typing = setTimeout(() => go(readForm(form), true), event.target.type === "search" ? TYPING_MS : 0);
});

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-filters]");
  if (!form) return;
  event.preventDefault();
  if (form.method === "post") {
    const body = new URLSearchParams(new FormData(form));
    body.set("action", event.submitter?.value || "start");
    await fetch(form.getAttribute("action"), { method: "POST", body });
  }
  go(readForm(form), true);
});

window.addEventListener("popstate", () => {
  fillForms();
  tag = "";
  refresh();
});

// -- the mouse and the keyboard -------------------------------------------------------------

async function follow(link) {
  const opens = link.classList.contains("open");
  const isPanel = link.closest("#panel");
  await go(link.href);
  fillForms();
  if (opens) document.getElementById("job-title")?.focus({ preventScroll: !isNarrow() });
  else if (isPanel && !panelJob()) focusList();
}

function isNarrow() {
  return window.matchMedia("(max-width: 900px)").matches;
}

function panelJob() {
  return new URLSearchParams(location.search).get("job");
}

let lastOpened = "";

function focusList() {
  const rows = document.querySelectorAll("a.open");
  const same = [...rows].find((row) => row.closest("tr")?.dataset.key === `job-${lastOpened}`);
  (same || rows[0])?.focus({ preventScroll: true });
}

document.addEventListener("click", (event) => {
  if (event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  let link = event.target.closest("a[data-soft]");
  if (!link && !event.target.closest("a, button, input, select, label, summary") && !getSelection().toString()) {
    link = event.target.closest("table.jobs tr")?.querySelector("a.open");
  }
  if (!link) return;
  event.preventDefault();
  if (link.classList.contains("open")) lastOpened = new URL(link.href).searchParams.get("job");
  follow(link);
});

document.addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  const isTyping = event.target.matches("input, select, textarea");
  if (event.key === "Escape") {
    const close = document.querySelector("#panel .close");
    if (close) follow(close);
    else if (isTyping) event.target.blur();
  } else if (event.key === "/" && !isTyping) {
    const search = document.querySelector("input[type=search]");
    if (search) event.preventDefault();
    search?.focus();
    search?.select();
  } else if ((event.key === "j" || event.key === "k") && !isTyping) {
    const rows = [...document.querySelectorAll("a.open")];
    const at = rows.indexOf(document.activeElement);
    const next = at < 0 ? 0 : at + (event.key === "j" ? 1 : -1);
    rows[Math.max(0, Math.min(rows.length - 1, next))]?.focus();
  }
});

// -- figures --------------------------------------------------------------------------------

// Figures are fetched when they come into view, and again now and then. plotly is loaded with the first of them.
let plotly = null;

function loadPlotly() {
  plotly = plotly || new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "static/plotly.min.js";
    script.onload = resolve;
    script.onerror = reject;
    document.head.append(script);
  });
  return plotly;
}

async function fetchFigure(card) {
  const headers = card.dataset.tag ? { "If-None-Match": card.dataset.tag } : {};
  const [answer] = await Promise.all([fetch(card.dataset.figure, { headers, cache: "no-store" }), loadPlotly()]);
  if (!answer.ok) return;
  card.dataset.tag = answer.headers.get("ETag");
  const fresh = document.createElement("template");
  fresh.innerHTML = await answer.text();
  const inner = fresh.content.querySelector(".card") || fresh.content;
  const figure = card.querySelector(".figure.drawn");
  const data = inner.querySelector(".figure-data");
  if (figure && data) {
    card.querySelector(".figure-data").textContent = data.textContent; // plotly keeps what the user has zoomed to
    for (const part of [".subtitle", ".scroll"]) {
      const [old, now] = [card.querySelector(part), inner.querySelector(part)];
      if (old && now) old.replaceWith(now);
    }
  } else {
    card.replaceChildren(...inner.childNodes);
  }
  const target = card.querySelector(".figure");
  if (target) await drawFigure(target);
}

const inSight = new Set();
const sight = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) inSight.delete(target);
      else if (!inSight.has(target)) {
        inSight.add(target);
        fetchFigure(target).catch(() => delete target.dataset.tag);
      }
    }
  },
  { rootMargin: "300px" },
);

function watchFigures() {
  for (const card of document.querySelectorAll(".lazy:not([data-watched])")) {
    card.dataset.watched = "";
    sight.observe(card);
  }
}

setInterval(() => {
  if (document.hidden) return;
  for (const card of inSight) if (card.isConnected) fetchFigure(card).catch(() => {});
}, FIGURES_EVERY_MS);

watchFigures();
timer = setTimeout(refresh, EVERY_MS);
