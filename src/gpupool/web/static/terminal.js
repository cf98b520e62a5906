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
    if (kind === KIND.STDOUT || kind === KIND.STDERR) this.terminal.write(payload.slice());
    else if (kind === KIND.NOTE) this.#showStatus(new TextDecoder().decode(payload));
    else if (kind === KIND.EXIT) this.#ended(JSON.parse(new TextDecoder().decode(payload)));
  }

  #ended(report) {
    this.#over = true;
    this.terminal.options.disableStdin = true;
    this.#showStatus(`The program has ended with status ${report.status}`);
    announce('The program has ended');
  }

  #type(bytes) {
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

function button(label, act) {
  const made = document.createElement('button');
  made.type = 'button';
  made.className = 'button small';
  made.textContent = label;
  made.addEventListener('click', act);
  return made;
}

customElements.define('gpupool-terminal', ProgramTerminal);
