'use strict';

// Charts: every <figure data-chart="URL"> is drawn from the JSON at that URL, with a legend that can hide lines, values
// under the pointer or the arrow keys, a table as an alternative, and a link to the data as CSV.

import uPlot from './vendor/uplot/uPlot.esm.js';

/**
 * @typedef {{label: string, values: (number|null)[], limit?: boolean}} Line
 * @typedef {{title: string, unit: string, times: number[], series: Line[], since: number, until: number,
 *   step_s: number, stacked?: boolean, stepped?: boolean, note?: string}} Data
 * `limit`: a bound drawn as a thin line and never stacked. `stepped`: a value holds for `step_s` from its time on.
 */

const HEIGHT = 230;
const MIN_RELOAD_MS = 30_000;
const MAX_RELOAD_MS = 600_000;
const MAX_TABLE_ROWS = 600;
const DURATIONS = [0.1, 0.2, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 432000, 864000];
/** Steps of an axis in units that are not decimal. */
const STEPS = { s: DURATIONS, MiB: Array.from({ length: 31 }, (_, power) => 2 ** power) };
const DASHES = [[], [7, 3], [2, 2], [10, 3, 2, 3], [4, 2], [12, 4], [1, 3], [6, 2, 1, 2]];
const MOMENT = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'short' });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' });
const DAY = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'short' });
const MONTH = new Intl.DateTimeFormat(undefined, { month: 'short', year: 'numeric' });
const NUMBER = new Intl.NumberFormat(undefined, { maximumFractionDigits: 2 });

/** @type {Map<HTMLElement, Figure>} */
const figures = new Map();

/** Create an element with attributes and children. */
function make(tag, attributes = {}, ...children) {
  const space = tag === 'svg' || tag === 'line' ? 'http://www.w3.org/2000/svg' : 'http://www.w3.org/1999/xhtml';
  const element = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function style(href) {
  const url = new URL(href, import.meta.url).href;
  if (![...document.styleSheets].some((sheet) => sheet.href === url)) {
    document.head.append(make('link', { rel: 'stylesheet', href: url }));
  }
}

/** Format seconds: `45s`, `5m10s`, `2h05m`, `3d4h`. */
function duration(seconds) {
  const s = Math.round(seconds);
  if (s < 60) return seconds < 10 && seconds % 1 ? `${seconds.toFixed(1)}s` : `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${s % 60 ? `${s % 60}s` : ''}`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${String(Math.floor((s % 3600) / 60)).padStart(2, '0')}m`;
  return `${Math.floor(s / 86400)}d${Math.floor((s % 86400) / 3600)}h`;
}

/** Format a value with its unit; null is a dash. */
function shown(value, unit, format = NUMBER) {
  if (value === null || value === undefined) return '–';
  if (unit === 's') return duration(value);
  if (unit === 'MiB' && Math.abs(value) >= 1024) return `${format.format(value / 1024)} GiB`;
  return unit === '%' ? `${format.format(value)} %` : format.format(value) + (unit && format === NUMBER ? ` ${unit}` : '');
}

/** Format the values of an axis in the unit of the largest. */
export function ticks(splits, unit) {
  if (unit !== 'MiB') {
    const step = splits.length > 1 ? Math.abs(splits[1] - splits[0]) : 1;
    const digits = Math.min(4, Math.max(1, Math.ceil(-Math.log10(step || 1))));
    const format = new Intl.NumberFormat(undefined, { maximumFractionDigits: digits, notation: 'compact' });
    return splits.map((value) => shown(value, unit, format));
  }
  const [size, word] = Math.max(...splits) >= 1024 ? [1024, 'GiB'] : [1, 'MiB'];
  return splits.map((value) => `${NUMBER.format(value / size)} ${word}`);
}

function colours(element, count) {
  const own = getComputedStyle(element);
  const pick = (name, otherwise) => own.getPropertyValue(name).trim() || otherwise;
  return {
    lines: Array.from({ length: count }, (_, i) => pick(`--chart-${(i % 8) + 1}`, '#0b62b8')),
    limit: pick('--chart-limit', '#6b7680'),
    text: pick('--chart-text', '#444'),
    grid: pick('--chart-grid', '#ddd'),
  };
}

/** Format times on the axis by their distance. */
function moments(_plot, splits, _axis, _space, apart) {
  return splits.map((at) => {
    const date = new Date(at * 1000);
    if (apart >= 28 * 86400) return MONTH.format(date);
    if (apart >= 86400 || (date.getHours() === 0 && date.getMinutes() === 0)) return DAY.format(date);
    return CLOCK.format(date);
  });
}

/** Return the data to draw: stacked sums if stacked, and a last time so that the last step has a width. */
function columns(data, hidden) {
  const times = data.times.slice();
  const rows = data.series.map((line) => line.values.slice());
  if (data.stepped && times.length) {
    times.push(Math.min(times[times.length - 1] + data.step_s, Math.max(data.until, times[times.length - 1] + 1)));
    for (const values of rows) values.push(values[values.length - 1]);
  }
  if (data.stacked) {
    const below = times.map(() => 0);
    data.series.forEach((line, at) => {
      if (line.limit || hidden.has(line.label)) return;
      rows[at] = rows[at].map((value, i) => (value === null ? null : (below[i] += value)));
    });
  }
  return [times, ...rows];
}

class Figure {
  /** @param {HTMLElement} element */
  constructor(element) {
    this.element = element;
    this.area = element.querySelector('.chart-area') ?? element.appendChild(make('div', { class: 'chart-area' }));
    this.hidden = new Set();
    /** @type {Data|null} */
    this.data = null;
    this.plot = null;
    this.timer = 0;
    this.legend = make('ul', { class: 'chart-legend' });
    this.announcement = make('p', { class: 'chart-values-read', 'aria-live': 'polite' });
    this.table = make('details', { class: 'chart-table' }, make('summary', {}, 'As a table'));
    this.table.addEventListener('toggle', () => this.fillTable());
    const csv = make('a', { class: 'button small', href: this.url('csv'), download: '' }, 'CSV');
    csv.setAttribute('aria-label', `${this.title}: CSV`);
    this.foot = make('div', { class: 'chart-foot' }, this.table, csv);
    this.area.after(this.legend, this.announcement, this.foot);
    this.area.tabIndex = 0;
    this.area.addEventListener('keydown', (event) => this.key(event));
    // Only after the focus leaves the figure: content below would move away from the pointer.
    this.element.addEventListener('focusout', (event) => this.element.contains(event.relatedTarget) || this.leave());
    this.message('Loading…');
    this.resizer = new ResizeObserver(() => this.resize());
    this.resizer.observe(this.area);
  }

  get title() {
    return this.element.querySelector('figcaption')?.textContent?.trim() ?? 'Chart';
  }

  url(format = '') {
    const url = new URL(this.element.dataset.chart, location.href);
    if (format) url.searchParams.set('format', format);
    return url.href;
  }

  message(text, tone = '') {
    this.plot?.destroy();
    this.plot = null;
    this.area.replaceChildren(make('p', { class: `chart-message ${tone}` }, text));
  }

  async load() {
    clearTimeout(this.timer);
    if (document.hidden) return this.scheduleReload();
    try {
      const answer = await fetch(this.url(), { headers: { accept: 'application/json' } });
      if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.error?.message ?? `HTTP ${answer.status}`);
      this.show(await answer.json());
    } catch (error) {
      if (!this.data) this.message(`The chart could not be loaded: ${error.message}`, 'chart-broken');
    }
    return this.scheduleReload();
  }

  scheduleReload() {
    if (!this.element.isConnected) return this.close();
    const step = (this.data?.step_s ?? 60) * 1000;
    this.timer = setTimeout(() => this.load(), Math.min(MAX_RELOAD_MS, Math.max(MIN_RELOAD_MS, step)) * (0.9 + Math.random() / 5));
    return undefined;
  }

  close() {
    clearTimeout(this.timer);
    this.resizer.disconnect();
    this.plot?.destroy();
    figures.delete(this.element);
  }

  /** @param {Data} data */
  show(data) {
    this.data = data;
    const hasValues = data.series.some((line) => !line.limit && line.values.some((value) => value !== null));
    if (hasValues) this.draw();
    else this.message(data.note || 'No measurements in this period.');
    this.legend.hidden = !hasValues;
    if (hasValues) this.fillLegend();
    this.area.setAttribute('aria-label', this.summary());
    this.fillTable();
  }

  draw() {
    const data = this.data;
    const colour = colours(this.element, data.series.length);
    const paths = data.stepped ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear();
    const series = data.series.map((line, at) => ({
      label: line.label,
      show: !this.hidden.has(line.label),
      stroke: line.limit ? colour.limit : colour.lines[at],
      width: line.limit ? 1 : 2,
      dash: line.limit ? [3, 5] : DASHES[at % DASHES.length],
      fill: data.stacked && !line.limit ? `${colour.lines[at]}55` : undefined,
      points: { show: line.values.filter((value) => value !== null).length < 3 },
      paths,
    }));
    const axis = { stroke: colour.text, grid: { stroke: colour.grid, width: 1 }, ticks: { stroke: colour.grid, width: 1 } };
    const options = {
      width: Math.max(200, this.area.clientWidth),
      height: HEIGHT,
      legend: { show: false },
      scales: { x: { time: true, range: () => [data.since, data.until] }, y: { range: (_plot, _least, most) => [0, most > 0 ? Math.max(most * 1.06, data.unit === 's' ? 0.2 : 0) : 1] } },
      axes: [
        { ...axis, values: moments, space: 70 },
        {
          ...axis,
          size: 62,
          values: (_plot, splits) => ticks(splits, data.unit),
          ...(STEPS[data.unit] ? { incrs: STEPS[data.unit] } : {}),
        },
      ],
      series: [{}, ...series],
      bands: data.stacked ? this.bands() : [],
      cursor: { sync: { key: 'time' }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      hooks: { setCursor: [(plot) => this.read(plot.cursor.idx)], setSelect: [(plot) => this.zoom(plot)] },
    };
    this.plot?.destroy();
    this.area.replaceChildren();
    this.plot = new uPlot(options, columns(data, this.hidden), this.area);
  }

  /** Fill each stacked line down to the one below it. */
  bands() {
    const visible = this.data.series.flatMap((line, at) => (line.limit || this.hidden.has(line.label) ? [] : [at + 1]));
    return visible.slice(1).map((at, i) => ({ series: [at, visible[i]] }));
  }

  resize() {
    if (this.plot && this.area.clientWidth > 0) this.plot.setSize({ width: this.area.clientWidth, height: HEIGHT });
  }

  fillLegend() {
    const colour = colours(this.element, this.data.series.length);
    this.values = [];
    const entries = this.data.series.map((line, at) => {
      const stroke = line.limit ? colour.limit : colour.lines[at];
      const dash = (line.limit ? [3, 5] : DASHES[at % DASHES.length]).join(' ');
      const mark = make('line', { x1: 0, y1: 5, x2: 26, y2: 5, stroke, 'stroke-width': line.limit ? 1 : 3, 'stroke-dasharray': dash });
      const value = make('span', { class: 'chart-value' });
      this.values.push(value);
      const pressed = String(!this.hidden.has(line.label));
      const swatch = make('svg', { width: 26, height: 10, 'aria-hidden': 'true' }, mark);
      const button = make('button', { type: 'button', 'aria-pressed': pressed, title: 'Show or hide' }, swatch, ` ${line.label} `, value);
      button.addEventListener('click', () => this.toggle(line.label, at));
      return make('li', {}, button);
    });
    this.legend.replaceChildren(...entries);
    this.read(null);
  }

  toggle(label, at) {
    if (!this.hidden.delete(label)) this.hidden.add(label);
    this.legend.querySelectorAll('button')[at].setAttribute('aria-pressed', String(!this.hidden.has(label)));
    this.draw();
  }

  /** Show the values at a step in the legend; without a pointer, of the last step that has values. */
  read(index) {
    const { series, unit, times } = this.data;
    series.forEach((line, at) => {
      const last = line.values.findLastIndex((value) => value !== null);
      const value = index === null || index === undefined ? line.values[last] : line.values[Math.min(index, times.length - 1)];
      this.values[at].textContent = shown(value, unit);
    });
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[event.key];
    if (step === undefined || !this.plot || !this.data.times.length) return;
    event.preventDefault();
    const last = this.data.times.length - 1;
    this.at = Math.max(0, Math.min(last, (this.at ?? last + (step < 0 ? 1 : 0)) + step));
    const left = this.plot.valToPos(this.data.times[this.at], 'x');
    this.plot.setCursor({ left, top: HEIGHT / 3 });
    this.announcement.textContent = this.sentence(this.at);
  }

  leave() {
    this.at = undefined;
    this.announcement.textContent = '';
    this.plot?.setCursor({ left: -10, top: -10 });
    if (this.data && this.plot) this.read(null);
  }

  sentence(index) {
    const { series, unit, times } = this.data;
    const values = series.map((line) => `${line.label}: ${shown(line.values[index], unit)}`);
    return `${MOMENT.format(times[index] * 1000)}. ${values.join(', ')}.`;
  }

  summary() {
    const { series, times } = this.data;
    if (!times.length) return `${this.title}. No measurements in this period.`;
    return `${this.title}. ${series.length} lines, ${times.length} steps. Latest: ${this.sentence(times.length - 1)} Use the arrow keys to read other steps.`;
  }

  fillTable() {
    if (!this.table.open || !this.data) return;
    const { series, unit, times } = this.data;
    const from = Math.max(0, times.length - MAX_TABLE_ROWS);
    const head = make('tr', {}, make('th', { scope: 'col' }, 'From'), ...series.map((line) => make('th', { scope: 'col', class: 'number' }, line.label)));
    const rows = times.slice(from).map((at, i) =>
      make('tr', {}, make('th', { scope: 'row' }, MOMENT.format(at * 1000)), ...series.map((line) => make('td', { class: 'number' }, shown(line.values[from + i], unit)))),
    );
    const table = make('table', {}, make('caption', { class: 'unseen' }, this.title), make('thead', {}, head), make('tbody', {}, ...rows.reverse()));
    const scroller = make('div', { class: 'chart-scroll', tabindex: '0', role: 'region', 'aria-label': `${this.title}: table` }, table);
    this.table.querySelector('.chart-scroll')?.remove();
    this.table.append(scroller);
  }

  /** Make the range selected with the pointer the period of the whole page, in its URL. */
  zoom(plot) {
    if (plot.select.width < 8) return;
    const [since, until] = [plot.select.left, plot.select.left + plot.select.width].map((x) => Math.round(plot.posToVal(x, 'x')));
    const picker = document.querySelector('[data-range-picker]');
    if (!picker || until - since < 60) {
      plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      return;
    }
    const url = new URL(location.href);
    url.searchParams.delete('range');
    url.searchParams.set('since', String(since));
    url.searchParams.set('until', String(until));
    location.assign(url);
  }
}

function mount() {
  for (const element of document.querySelectorAll('figure[data-chart]')) {
    if (figures.has(element)) continue;
    const figure = new Figure(element);
    figures.set(element, figure);
    figure.load();
  }
}

function repaint() {
  for (const figure of figures.values()) if (figure.data) figure.show(figure.data);
}

style('./vendor/uplot/uPlot.min.css');
style('./charts.css');
mount();
new MutationObserver(mount).observe(document.querySelector('main') ?? document.body, { childList: true, subtree: true });
new MutationObserver(repaint).observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme', 'class'] });
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', repaint);
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) for (const figure of figures.values()) figure.load();
});
