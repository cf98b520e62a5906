'use strict';
/**
 * <gpupool-output>: the live output of a program. #output-source (data-source, data-file, data-errors) names the program;
 * live updates of the page may change it, but not the element itself. In a closed <details> it reads nothing.
 */
import {Ansi} from './ansi.js';
import {announce} from './app.js';

const MAX_LINES = 5000;
const MAX_ALL_LINES = 200_000; // after "Whole output"
const TAIL_LINES = 2000;
const RETRY_DELAY_MS = 3000;
const SEARCH_DELAY_MS = 150;

class Output extends HTMLElement {
  #source = '';
  #stream = null;
  #cursor = '';
  #ended = false;
  #all = false;
  #decoders = {};
  #ansi = {};
  #open = null; // the current, incomplete line
  #waiting = [];
  #hits = [];
  #hit = -1;
  #timer = 0;

  connectedCallback() {
    this.innerHTML = '';
    const bar = document.createElement('div');
    bar.className = 'row output-bar';
    this.status = make('span', 'quiet', 'Connecting');
    this.status.setAttribute('role', 'status');
    this.follow = tick('Follow', true);
    this.wrap = tick('Wrap lines', true);
    this.times = tick('Times', false);
    this.whole = button('Whole output', () => this.#showAll());
    this.file = make('a', 'button small', 'Download');
    bar.append(this.status, this.follow.label, this.wrap.label, this.times.label, this.whole, this.file);
    this.pre = make('pre', 'output-text wrap', '');
    this.pre.tabIndex = 0;
    this.pre.setAttribute('role', 'log');
    this.pre.setAttribute('aria-label', 'Output');
    this.pre.setAttribute('aria-live', 'off');
    this.append(bar, this.#makeSearch(), this.pre);
    this.wrap.box.addEventListener('change', () => this.pre.classList.toggle('wrap', this.wrap.box.checked));
    this.times.box.addEventListener('change', () => this.pre.classList.toggle('times', this.times.box.checked));
    this.follow.box.addEventListener('change', () => this.#scroll());
    this.pre.addEventListener('wheel', () => this.#followAtEnd(), {passive: true});
    this.pre.addEventListener('keyup', () => this.#followAtEnd());
    this.updated = () => this.#readSource();
    this.shown = () => (document.hidden ? this.#close() : this.#connect());
    this.drawer = this.closest('details');
    this.drawer?.addEventListener('toggle', this.shown);
    document.addEventListener('gpupool:updated', this.updated);
    document.addEventListener('visibilitychange', this.shown);
    this.#readSource();
  }

  disconnectedCallback() {
    this.drawer?.removeEventListener('toggle', this.shown);
    document.removeEventListener('gpupool:updated', this.updated);
    document.removeEventListener('visibilitychange', this.shown);
    clearTimeout(this.#timer);
    this.#close();
  }

  #makeSearch() {
    const bar = document.createElement('div');
    bar.className = 'row output-bar output-search';
    this.search = document.createElement('input');
    this.search.type = 'search';
    this.search.placeholder = 'Search';
    this.search.setAttribute('aria-label', 'Search the output');
    this.count = make('span', 'quiet', '');
    this.count.setAttribute('role', 'status');
    this.search.addEventListener('input', () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#find(), SEARCH_DELAY_MS);
    });
    this.search.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter') return;
      event.preventDefault();
      this.#find();
      this.#go(event.shiftKey ? -1 : 1);
    });
    const back = button('Previous', () => this.#go(-1));
    const on = button('Next', () => this.#go(1));
    const error = button('Next error', () => this.#goError());
    bar.append(this.search, back, on, error, this.count);
    return bar;
  }

  /** Start again if the page shows another program than before. */
  #readSource() {
    const source = document.querySelector('#output-source');
    if (!source || source.dataset.source === this.#source) return;
    this.#source = source.dataset.source;
    this.#errors = new RegExp(source.dataset.errors);
    this.file.href = source.dataset.file;
    this.file.download = '';
    this.#all = false;
    this.#restart();
  }

  #errors = /(?!)/;

  #restart() {
    this.#close();
    this.pre.replaceChildren();
    this.whole.hidden = this.#all;
    [this.#cursor, this.#ended, this.#open, this.#decoders, this.#ansi] = ['', false, null, {}, {}];
    [this.#waiting, this.#hits, this.#hit] = [[], [], -1];
    this.#connect();
  }

  #showAll() {
    this.#all = true;
    this.follow.box.checked = false;
    this.#restart();
  }

  #connect() {
    if (this.drawer && !this.drawer.open) return this.#close();
    if (this.#stream || this.#ended || document.hidden || !this.#source) return;
    const from = this.#cursor ? `&cursor=${encodeURIComponent(this.#cursor)}` : this.#all ? '' : `&tail=${TAIL_LINES}`;
    const stream = this.#stream = new EventSource(`${this.#source}${from}`);
    stream.addEventListener('open', () => this.#showStatus('Live'));
    stream.addEventListener('chunk', (event) => this.#receive(event));
    stream.addEventListener('end', () => {
      this.#ended = true;
      this.#close();
      this.#showStatus(this.pre.childElementCount || this.#waiting.length ? 'Complete' : 'No output');
    });
    stream.addEventListener('error', () => {
      this.#showStatus('Not connected; reconnecting');
      if (stream.readyState !== EventSource.CLOSED) return; // the browser retries automatically
      this.#close();
      setTimeout(() => this.isConnected && this.#connect(), RETRY_DELAY_MS);
    });
  }

  #close() {
    this.#stream?.close();
    this.#stream = null;
  }

  #showStatus(text) {
    if (this.status.textContent === text) return;
    this.status.textContent = text;
    if (text === 'Complete') announce('The output is complete');
  }

  #receive(event) {
    const chunk = JSON.parse(event.data);
    if (this.#all && !this.#cursor && parseInt(chunk.cursor, 10) > 1) {
      this.pre.append(make('span', 'line line-note', 'Older output was deleted: the log reached its size limit.'));
    }
    this.#cursor = chunk.cursor;
    const bytes = Uint8Array.from(atob(chunk.data), (letter) => letter.charCodeAt(0));
    const decoder = this.#decoders[chunk.stream] ??= new TextDecoder();
    this.#waiting.push([chunk.stream, decoder.decode(bytes, {stream: true}), chunk.at]);
    if (this.#waiting.length === 1) requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    const pieces = this.#waiting;
    this.#waiting = [];
    const drawn = document.createDocumentFragment();
    for (const [kind, text, at] of pieces) this.#write(drawn, kind, text, at);
    this.pre.append(drawn);
    const most = this.#all ? MAX_ALL_LINES : MAX_LINES;
    while (this.pre.childElementCount > most) this.pre.firstElementChild.remove();
    if (this.search.value) this.#find();
    this.#scroll();
  }

  #write(drawn, kind, text, at) {
    const ansi = this.#ansi[kind] ??= new Ansi();
    const lines = ansi.take(text).replaceAll('\r\n', '\n').split('\n');
    lines.forEach((line, number) => {
      if (number) this.#open = null;
      if (number === lines.length - 1 && !line) return;
      this.#line(drawn, ansi, kind, line, at);
    });
  }

  /** Add to the current line; text after a carriage return overwrites it. */
  #line(drawn, ansi, kind, text, at) {
    if (this.#open === null || this.#open.dataset.kind !== kind) {
      this.#open = make('span', kind === 'err' ? 'line line-err' : 'line', '');
      this.#open.dataset.kind = kind;
      this.#open.dataset.at = clock(at);
      [this.#open.raw, this.#open.style0] = ['', ansi.style];
      drawn.append(this.#open);
    }
    const line = this.#open;
    const parts = (line.raw + text).split('\r');
    line.raw = (parts.at(-1) || parts.at(-2) || '') + (parts.length > 1 && !parts.at(-1) ? '\r' : '');
    ansi.style = Ansi.draw(line, line.raw.replace(/\r$/, ''), line.style0);
  }

  #find() {
    const wanted = this.search.value.toLowerCase();
    const now = this.#hits[this.#hit];
    this.#hits = [];
    for (const line of this.pre.children) {
      const found = wanted !== '' && line.textContent.toLowerCase().includes(wanted);
      line.classList.toggle('hit', found);
      if (found) this.#hits.push(line);
    }
    this.#hit = this.#hits.indexOf(now);
    this.#showCount(wanted ? 'matches' : '');
  }

  #showCount(what) {
    const count = this.#hits.length;
    this.count.textContent = what && (this.#hit < 0 ? `${count} ${what}` : `${this.#hit + 1} of ${count} ${what}`);
  }

  #go(step) {
    if (!this.#hits.length) return;
    this.#hit = this.#hit < 0 && step < 0 ? this.#hits.length - 1 : (this.#hit + step + this.#hits.length) % this.#hits.length;
    this.#show(this.#hits[this.#hit]);
    this.#showCount('matches');
  }

  /** Show the next line that reports an error, after the one shown last. */
  #goError() {
    const lines = [...this.pre.children].filter((line) => this.#errors.test(line.textContent));
    if (!lines.length) {
      this.count.textContent = 'no errors found';
      return;
    }
    const next = (lines.indexOf(this.pre.querySelector('.hit-now')) + 1) % lines.length;
    this.#show(lines[next]);
    this.count.textContent = `${next + 1} of ${lines.length} errors`;
  }

  #show(line) {
    this.follow.box.checked = false;
    this.pre.querySelector('.hit-now')?.classList.remove('hit-now');
    line.classList.add('hit-now');
    line.scrollIntoView({block: 'nearest'});
  }

  #followAtEnd() {
    const end = this.pre.scrollHeight - this.pre.scrollTop - this.pre.clientHeight < 40;
    if (end !== this.follow.box.checked) this.follow.box.checked = end;
  }

  #scroll() {
    if (this.follow.box.checked) this.pre.scrollTop = this.pre.scrollHeight;
  }
}

const clock = (at) => new Date(at * 1000).toLocaleTimeString([], {hour12: false});

function make(name, className, text) {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  return element;
}

function button(label, act) {
  const made = make('button', 'button small', label);
  made.type = 'button';
  made.addEventListener('click', act);
  return made;
}

function tick(text, on) {
  const label = make('label', 'tick', '');
  const box = document.createElement('input');
  box.type = 'checkbox';
  box.checked = on;
  label.append(box, ` ${text}`);
  return {label, box};
}

customElements.define('gpupool-output', Output);
