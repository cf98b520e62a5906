'use strict';
/**
 * <gpupool-terminal>: a program's terminal over a WebSocket. #terminal-source (data-socket, data-key) names the program;
 * live updates of the page may change it, but not the element itself.
 */
import {announce} from './app.js';
import {Frames, KIND, frame, hello, resize, text} from './frames.js';
import {FitAddon} from './vendor/xterm/addon-fit.mjs';
import {Terminal} from './vendor/xterm/xterm.mjs';

const MAX_FRAME_BYTES = 64 * 1024; // bytes of typed or pasted text in one frame
const MAX_RETRY_DELAY_MS = 10_000;
const MAX_EARLY_FRAMES = 1000; // frames typed before the connection is open
// Output that the terminal has not drawn yet. Beyond this, older output is skipped: it would leave the scrollback anyway.
const MAX_BACKLOG_BYTES = 1 << 20;
const KEPT_BACKLOG_BYTES = 1 << 19;
const WRITE_BYTES = 1 << 16; // given to the terminal at a time, so that keys are handled in between
const INTERRUPT = 3; // Ctrl-C
const AFTER_INTERRUPT_MS = 3000; // for this time after Ctrl-C, only the latest output is drawn
const AFTER_INTERRUPT_BYTES = 1 << 15;
const CLOSE_BASE = 4000; // a close code of this + HTTP status is an answer of the pool, not an error

/**
 * xterm.js writes its rules into <style> elements, which our content security policy forbids. While it opens, those
 * elements are stand-ins whose text goes into style sheets made by script, which is allowed.
 */
function openWithSheets(terminal, box) {
  const create = document.createElement.bind(document);
  document.createElement = (name, ...rest) => (name === 'style' ? standIn(create) : create(name, ...rest));
  try {
    terminal.open(box);
  } finally {
    delete document.createElement;
  }
}

function standIn(create) {
  const element = create('span');
  const sheet = new CSSStyleSheet();
  element.hidden = true;
  document.adoptedStyleSheets.push(sheet);
  Object.defineProperty(element, 'textContent', {set: (rules) => sheet.replaceSync(rules), get: () => ''});
  const remove = element.remove.bind(element);
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
    remove();
  };
  return element;
}

/** Set colours outside the theme by script: they come as style attributes, which the content policy ignores. */
function applyStyles(box) {
  const apply = (node) => { node.style.cssText = node.getAttribute('style'); };
  new MutationObserver((changes) => {
    for (const {addedNodes} of changes) {
      for (const node of addedNodes) if (node.nodeType === Node.ELEMENT_NODE && node.hasAttribute('style')) apply(node);
    }
  }).observe(box, {childList: true, subtree: true});
}

class ProgramTerminal extends HTMLElement {
  #key = '';
  #socket = null;
  #over = false;
  #wait = 1000;
  #timer = 0;
  #early = [];
  #backlog = [];
  #backlogBytes = 0;
  #writing = false;
  #interrupted = -Infinity;

  connectedCallback() {
    this.innerHTML = '';
    this.box = document.createElement('div');
    this.box.className = 'terminal-box';
    this.bar = document.createElement('p');
    this.bar.className = 'row terminal-bar';
    this.status = document.createElement('span');
    this.status.className = 'quiet';
    this.status.setAttribute('role', 'status');
    this.reconnect = button('Reconnect', () => this.#connect());
    this.reconnect.hidden = true;
    this.bar.append(this.status, this.reconnect);
    this.append(this.box, this.bar);
    this.updated = () => this.#readSource();
    document.addEventListener('gpupool:updated', this.updated);
    this.#makeTerminal();
    this.#readSource();
  }

  disconnectedCallback() {
    document.removeEventListener('gpupool:updated', this.updated);
    clearTimeout(this.#timer);
    this.watcher.disconnect();
    this.#disconnect();
    this.terminal.dispose();
  }

  #makeTerminal() {
    const mono = getComputedStyle(document.documentElement).getPropertyValue('--mono');
    this.terminal = new Terminal({
      fontFamily: mono.trim() || 'monospace',
      fontSize: 13,
      scrollback: 5000,
      cursorBlink: false,
      theme: {background: '#0f1217', foreground: '#e8ebf0', cursor: '#8ab4ff'},
    });
    this.fit = new FitAddon();
    this.terminal.loadAddon(this.fit);
    openWithSheets(this.terminal, this.box);
    applyStyles(this.box);
    this.terminal.textarea?.setAttribute('aria-label', 'Terminal: Shift+Escape leaves it');
    this.terminal.attachCustomKeyEventHandler((event) => this.#leave(event));
    this.terminal.onData((typed) => this.#type(text(typed)));
    this.terminal.onBinary((typed) => this.#type(Uint8Array.from(typed, (letter) => letter.charCodeAt(0))));
    this.terminal.onResize(({rows, cols}) => this.#send(resize(rows, cols)));
    this.watcher = new ResizeObserver(() => this.fit.fit());
    this.watcher.observe(this.box);
    this.fit.fit();
  }

  /** Leave the terminal with another key than Tab, which belongs to the program. */
  #leave(event) {
    if (event.type !== 'keydown' || event.key !== 'Escape' || !event.shiftKey) return true;
    this.terminal.blur();
    this.reconnect.hidden ? document.querySelector('#main')?.focus() : this.reconnect.focus();
    return false;
  }

  /** Connect to a program that the page has not shown before. */
  #readSource() {
    const source = document.querySelector('#terminal-source');
    if (!source?.dataset.socket || source.dataset.key === this.#key) return;
    this.#key = source.dataset.key;
    this.#over = false;
    this.terminal.options.disableStdin = false;
    this.#disconnect();
    this.#connect();
  }

  #connect() {
    clearTimeout(this.#timer);
    const source = document.querySelector('#terminal-source');
    const url = new URL(source?.dataset.socket || this.url, location.href);
    url.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:';
    this.url = url.href;
    this.#disconnect();
    this.#early = [];
    this.reconnect.hidden = true;
    const socket = this.#socket = new WebSocket(url);
    const frames = new Frames();
    socket.binaryType = 'arraybuffer';
    this.#showStatus('Connecting');
    socket.addEventListener('open', () => {
      this.#dropBacklog();
      this.terminal.reset();
      this.#wait = 1000;
      this.#send(hello(this.terminal.rows, this.terminal.cols, true));
      for (const bytes of this.#early.splice(0)) this.#send(bytes);
      this.#showStatus('Connected');
    });
    socket.addEventListener('message', ({data}) => {
      for (const [kind, payload] of frames.take(data)) this.#receive(kind, payload);
    });
    socket.addEventListener('close', (event) => socket === this.#socket && this.#closed(event));
  }

  #disconnect() {
    const socket = this.#socket;
    this.#socket = null;
    if (socket?.readyState === WebSocket.OPEN) socket.send(frame(KIND.DETACH)); // the program continues
    socket?.close();
  }

  #closed(event) {
    this.#socket = null;
    if (this.#over) return;
    if (event.code > CLOSE_BASE) {
      this.#showStatus(event.reason.replace(/^[A-Z_]+: /, '') || 'The terminal was refused');
      this.reconnect.hidden = false;
      return;
    }
    this.#showStatus('Connection lost; reconnecting');
    this.reconnect.hidden = false;
    this.#timer = setTimeout(() => this.isConnected && this.#connect(), this.#wait);
    this.#wait = Math.min(2 * this.#wait, MAX_RETRY_DELAY_MS);
  }

  #receive(kind, payload) {
    if (kind === KIND.STDOUT || kind === KIND.STDERR) this.#output(payload.slice());
    else if (kind === KIND.NOTE) this.#note(new TextDecoder().decode(payload));
    else if (kind === KIND.EXIT) this.#ended(JSON.parse(new TextDecoder().decode(payload)));
  }

  /** Queue output. A program that writes faster than the terminal draws does not delay what follows. */
  #output(bytes) {
    this.#backlog.push(bytes);
    this.#backlogBytes += bytes.length;
    const soon = performance.now() - this.#interrupted < AFTER_INTERRUPT_MS;
    if (this.#backlogBytes > (soon ? 2 * AFTER_INTERRUPT_BYTES : MAX_BACKLOG_BYTES)) this.#skip(soon ? AFTER_INTERRUPT_BYTES : KEPT_BACKLOG_BYTES);
    this.#write();
  }

  #write() {
    if (this.#writing || !this.#backlog.length) return;
    const pieces = [];
    for (let size = 0; this.#backlog.length && size < WRITE_BYTES; size += pieces.at(-1).length) pieces.push(this.#backlog.shift());
    const bytes = joined(pieces);
    this.#backlogBytes -= bytes.length;
    this.#writing = true;
    this.terminal.write(bytes, () => {
      this.#writing = false;
      this.#write();
    });
  }

  /** Drop the oldest output up to the end of a line, cancel a cut sequence, and say how much is missing. */
  #skip(kept) {
    const before = this.#backlogBytes;
    while (this.#backlogBytes > kept) this.#backlogBytes -= this.#backlog.shift().length;
    const first = this.#backlog.shift() ?? new Uint8Array();
    const rest = first.subarray(first.indexOf(10) + 1);
    this.#backlogBytes -= first.length - rest.length;
    const note = text(`\x18\x1b[0m\r\n[${before - this.#backlogBytes} bytes are not shown here: see the output as text]\r\n`);
    this.#backlog.unshift(note, rest);
    this.#backlogBytes += note.length;
  }

  #dropBacklog() {
    [this.#backlog, this.#backlogBytes] = [[], 0];
  }

  #note(line) {
    this.#output(text(`\x18\x1b[0m\r\n[${line}]\r\n`));
    this.#showStatus(line);
  }

  #ended(report) {
    this.#over = true;
    this.terminal.options.disableStdin = true;
    this.#showStatus(`The program has ended with status ${report.status}`);
    announce('The program has ended');
  }

  #type(bytes) {
    if (bytes.includes(INTERRUPT)) { // as a terminal does: the answer appears at once
      this.#interrupted = performance.now();
      this.#dropBacklog();
    }
    for (let at = 0; at < bytes.length; at += MAX_FRAME_BYTES) this.#sendSoon(frame(KIND.STDIN, bytes.subarray(at, at + MAX_FRAME_BYTES)));
  }

  #send(bytes) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(bytes);
  }

  /** Send input later while the connection opens; drop it without a connection. */
  #sendSoon(bytes) {
    if (this.#socket?.readyState === WebSocket.CONNECTING && this.#early.length < MAX_EARLY_FRAMES) this.#early.push(bytes);
    else this.#send(bytes);
  }

  #showStatus(message) {
    this.status.textContent = message;
  }
}

function joined(pieces) {
  const whole = new Uint8Array(pieces.reduce((size, piece) => size + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

function button(label, act) {
  const made = document.createElement('button');
  made.type = 'button';
  made.className = 'button small';
  made.textContent = label;
  made.addEventListener('click', act);
  return made;
}

customElements.define('gpupool-terminal', ProgramTerminal);
