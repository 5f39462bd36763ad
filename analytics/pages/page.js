"use strict";
// Draws the figures of a page, one after the other so that the page can be used meanwhile, in the page's theme.

const root = document.documentElement;
const systemIsDark = window.matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : systemIsDark.matches;
}

function themedLayout(layout) {
  const style = getComputedStyle(root);
  const ink = style.getPropertyValue("--ink").trim();
  const grid = style.getPropertyValue("--grid").trim();
  const changes = {
    "font.color": ink,
    "hoverlabel.bgcolor": style.getPropertyValue("--card").trim(),
    "hoverlabel.font.color": ink,
  };
  for (const name of Object.keys(layout)) {
    if (/^[xy]axis\d*$/.test(name)) {
      changes[name + ".gridcolor"] = grid;
      changes[name + ".zerolinecolor"] = grid;
    }
  }
  return changes;
}

// A legend above the plot takes more lines on a narrow screen, and long labels less room.
function fitLayout(layout, width) {
  if (width < 560) {
    layout.margin = { ...layout.margin, l: 40, r: 8 };
    layout.font = { ...layout.font, size: 11 };
  }
  return layout;
}

const CONFIG = { responsive: true, displaylogo: false, plotlyServerURL: "", modeBarButtonsToRemove: ["select2d", "lasso2d"] };

function drawFigure(place) {
  const data = JSON.parse(place.parentElement.querySelector(".figure-data").textContent);
  const layout = fitLayout(data.layout, place.clientWidth);
  for (const [path, value] of Object.entries(themedLayout(layout))) {
    const names = path.split(".");
    const last = names.pop();
    names.reduce((part, name) => (part[name] = part[name] || {}), layout)[last] = value;
  }
  place.classList.add("drawn");
  return Plotly.react(place, data.data, layout, CONFIG);
}

async function drawFigures() {
  for (const place of document.querySelectorAll(".figure:not(.drawn)")) {
    await drawFigure(place);
    await new Promise((resolve) => setTimeout(resolve));
  }
  document.body.dataset.drawn = "true";
}

function themeFigures() {
  for (const place of document.querySelectorAll(".figure.drawn")) {
    Plotly.relayout(place, themedLayout(place.layout));
  }
  document.getElementById("theme").setAttribute("aria-pressed", String(isDark()));
}

function remember(theme) {
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // a page that is opened as a file may store nothing
  }
}

function remembered() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

if (remembered()) {
  root.dataset.theme = remembered();
}
document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  remember(root.dataset.theme);
  themeFigures();
});
systemIsDark.addEventListener("change", themeFigures);
document.getElementById("theme").setAttribute("aria-pressed", String(isDark()));
drawFigures();
