'use strict';
/**
 * <gpupool-output>: the live output of a program. #output-source (data-source, data-file) names the program; live updates
 * of the page may change it, but not the element itself.
 */
import {announce} from './app.js';

const MAX_LINES = 5000;
const TAIL_LINES = 2000;
const RETRY_DELAY_MS = 3000;
// Sequences that move cursors and set colours: CSI, OSC, and the short ones.
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g;

class Output extends HTMLElement {
  #source = '';
  #stream = null;
  #cursor = '';
  #ended = false;
  #decoders = {};
  #open = null; // the current, incomplete line
  #kind = 'out';
  #last = '';
  #waiting = [];

  connectedCallback() {
    this.innerHTML = '';
    const bar = document.createElement('div');
    bar.className = 'row output-bar';
    this.status = make('span', 'quiet', 'Connecting');
    this.status.setAttribute('role', 'status');
    this.follow = tick('Follow', true);
    this.wrap = tick('Wrap lines', true);
    this.file = make('a', 'button small', 'Download');
    bar.append(this.status, this.follow.label, this.wrap.label, this.file);
    this.pre = make('pre', 'output-text wrap', '');
    this.pre.tabIndex = 0;
    this.pre.setAttribute('role', 'log');
    this.pre.setAttribute('aria-label', 'Output');
    this.pre.setAttribute('aria-live', 'off');
    this.append(bar, this.pre);
    this.wrap.box.addEventListener('change', () => this.pre.classList.toggle('wrap', this.wrap.box.checked));
    this.follow.box.addEventListener('change', () => this.#scroll());
    this.pre.addEventListener('wheel', () => this.#followAtEnd(), {passive: true});
    this.pre.addEventListener('keyup', () => this.#followAtEnd());
    this.updated = () => this.#readSource();
    this.shown = () => (document.hidden ? this.#close() : this.#connect());
    document.addEventListener('gpupool:updated', this.updated);
    document.addEventListener('visibilitychange', this.shown);
    this.#readSource();
  }

  disconnectedCallback() {
    document.removeEventListener('gpupool:updated', this.updated);
    document.removeEventListener('visibilitychange', this.shown);
    this.#close();
  }

  /** Start again if the page shows another program than before. */
  #readSource() {
    const source = document.querySelector('#output-source');
    if (!source || source.dataset.source === this.#source) return;
    this.#close();
    this.#source = source.dataset.source;
    this.file.href = source.dataset.file;
    this.file.download = '';
    this.pre.replaceChildren();
    [this.#cursor, this.#ended, this.#open, this.#last, this.#decoders] = ['', false, null, '', {}];
    this.#connect();
  }

  #connect() {
    if (this.#stream || this.#ended || document.hidden || !this.#source) return;
    const from = this.#cursor ? `cursor=${encodeURIComponent(this.#cursor)}` : `tail=${TAIL_LINES}`;
    const stream = this.#stream = new EventSource(`${this.#source}&${from}`);
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
    this.#cursor = chunk.cursor;
    const bytes = Uint8Array.from(atob(chunk.data), (letter) => letter.charCodeAt(0));
    const decoder = this.#decoders[chunk.stream] ??= new TextDecoder();
    this.#waiting.push([chunk.stream, decoder.decode(bytes, {stream: true})]);
    if (this.#waiting.length === 1) requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    const pieces = this.#waiting;
    this.#waiting = [];
    const drawn = document.createDocumentFragment();
    for (const [kind, text] of pieces) this.#write(drawn, kind, text);
    this.pre.append(drawn);
    while (this.pre.childElementCount > MAX_LINES) this.pre.firstElementChild.remove();
    this.#scroll();
  }

  #write(drawn, kind, text) {
    const plain = (this.#kind === kind ? this.#last : '') + text;
    const cut = /\x1b[^a-zA-Z\x07]{0,64}$/.exec(plain); // an incomplete escape sequence
    this.#last = cut ? cut[0] : '';
    this.#kind = kind;
    const lines = plain.slice(0, plain.length - this.#last.length).replace(ESCAPES, '').replaceAll('\r\n', '\n').split('\n');
    lines.forEach((line, number) => {
      if (number) this.#open = null;
      if (number === lines.length - 1 && !line) return;
      this.#line(drawn, kind, line);
    });
  }

  /** Add to the current line; text after a carriage return overwrites it. */
  #line(drawn, kind, text) {
    if (this.#open === null || this.#open.dataset.kind !== kind) {
      this.#open = make('span', kind === 'err' ? 'line line-err' : 'line', '');
      this.#open.dataset.kind = kind;
      drawn.append(this.#open);
    }
    const whole = this.#open.textContent.replace(/\n$/, '') + text;
    const parts = whole.split('\r');
    this.#open.textContent = (parts.at(-1) || parts.at(-2) || '') + (parts.length > 1 && !parts.at(-1) ? '\r' : '');
  }

  #followAtEnd() {
    const end = this.pre.scrollHeight - this.pre.scrollTop - this.pre.clientHeight < 40;
    if (end !== this.follow.box.checked) this.follow.box.checked = end;
  }

  #scroll() {
    if (this.follow.box.checked) this.pre.scrollTop = this.pre.scrollHeight;
  }
}

function make(name, className, text) {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  return element;
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
