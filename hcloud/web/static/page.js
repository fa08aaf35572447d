// What pages do in the browser beside htmx: times in the reader's zone, charts, and output that follows.
"use strict";
(() => {
  const short = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const long = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

  function showTimes(root) {
    const today = new Date().toDateString();
    for (const each of root.querySelectorAll("time[datetime]:not([data-shown])")) {
      const at = new Date(each.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      each.title = each.textContent;
      each.textContent = at.toDateString() === today ? short.format(at) : long.format(at);
      each.dataset.shown = "yes";
    }
  }

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  const drawn = new Map();  // charts by their place

  function drawChart(place) {
    if (drawn.has(place) || typeof uPlot === "undefined") return;
    const shown = JSON.parse(place.dataset.chart);
    const axis = { stroke: colour("--text"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
    const colours = [colour("--accent"), colour("--hot"), colour("--good"), colour("--quiet")];
    const bars = shown.bars ? { paths: uPlot.paths.bars({ size: [0.7, 60] }), points: { show: false } } : {};
    const series = shown.names.map((name, at) => ({
      label: name, stroke: name.endsWith("limit") ? colour("--quiet") : colours[at % colours.length], width: name.endsWith("limit") ? 1 : 2,
      dash: name.endsWith("limit") ? [5, 5] : undefined, fill: shown.bars ? colours[at % colours.length] : undefined,
      value: (_, value) => value === null || value === undefined ? "" : shown.unit === "$" ? "$" + value.toPrecision(4) : value.toPrecision(3) + (shown.unit || ""), ...bars,
    }));
    const options = {
      width: place.clientWidth || 600, height: 240, series: [{}, ...series],
      axes: [{ ...axis, ...(shown.x ? { label: shown.x, scale: "x" } : {}) }, { ...axis, size: 70, label: shown.y }],
      scales: { x: { time: !shown.x, range: shown.x || shown.bars ? undefined : wide }, y: { range: (_, low, high) => [Math.min(0, low), shown.most || (high > 0 ? high * 1.08 : 1)] } },
    };
    // Each day is one of the zone that the page names, and drawn as if it were one of UTC.
    if (shown.bars) options.tzDate = (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC");
    drawn.set(place, new uPlot(options, shown.data, place));
    widths.observe(place);
  }

  // A chart over time shows a minute at least: two samples of one moment are not drawn with axes in milliseconds.
  const wide = (_, first, last) => last === null || last - first >= 60 ? [first, last] : [last - 60, last];

  const widths = new ResizeObserver((changes) => {
    for (const { target } of changes) {
      if (target.isConnected) drawn.get(target).setSize({ width: target.clientWidth, height: 240 });
      else { widths.unobserve(target); drawn.delete(target); }
    }
  });
  // A chart has the colours that the page had when it was drawn.
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const [place, chart] of [...drawn]) {
      chart.destroy();
      drawn.delete(place);
      if (place.isConnected) drawChart(place);
    }
  });

  function followOutput(root) {
    for (const each of root.querySelectorAll ? root.querySelectorAll(".log") : []) each.scrollTop = each.scrollHeight;
  }

  function shown(root) {
    showTimes(root);
    for (const each of root.querySelectorAll("[data-chart]")) drawChart(each);
  }

  document.addEventListener("DOMContentLoaded", () => {
    const zone = document.getElementById("zone");
    if (zone) zone.textContent = "times in " + Intl.DateTimeFormat().resolvedOptions().timeZone;
    shown(document);
    followOutput(document);
  });
  document.addEventListener("htmx:load", (event) => {
    shown(event.detail.elt.parentElement || document);
    const log = event.detail.elt.closest && event.detail.elt.closest(".log");
    if (log && log.scrollHeight - log.scrollTop - log.clientHeight < 4000) log.scrollTop = log.scrollHeight;
  });
  // Days of cost are those of the reader's zone.
  document.addEventListener("htmx:configRequest", (event) => {
    if (event.detail.path.startsWith("/money/reports")) event.detail.parameters.zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  });
  // What changes something that cannot be undone asks first.
  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.question;
    if (question && !window.confirm(question)) event.preventDefault();
  });
})();
