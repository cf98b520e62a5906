'use strict';
/**
 * <gpupool-terminal>: a program's terminal over a WebSocket. Which program it is stands in #terminal-source
 * (data-socket, data-key), which live updates of the page may change; the element itself they leave alone.
 */
import {say} from './app.js';
import {Frames, KIND, frame, hello, resize, text} from './frames.js';
import {FitAddon} from './vendor/xterm/addon-fit.mjs';
import {Terminal} from './vendor/xterm/xterm.mjs';

const PIECE = 64 * 1024; // bytes of typed or pasted text in one frame
const LONGEST_WAIT_MS = 10_000;
const MOST_EARLY = 1000; // frames typed before the connection stands
const REFUSED = 4000; // a close with this + HTTP status is the pool's answer, not a fault

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

/** Colours that are no theme colours come as style attributes, which the policy ignores: set them by script. */
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
    this.again = button('Connect again', () => this.#connect());
    this.again.hidden = true;
    this.bar.append(this.status, this.again);
    this.append(this.box, this.bar);
    this.updated = () => this.#look();
    document.addEventListener('gpupool:updated', this.updated);
    this.#makeTerminal();
    this.#look();
  }

  disconnectedCallback() {
    document.removeEventListener('gpupool:updated', this.updated);
    clearTimeout(this.#timer);
    this.watcher.disconnect();
    this.#hangUp();
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

  /** Tab belongs to the program, so another key has to lead out. */
  #leave(event) {
    if (event.type !== 'keydown' || event.key !== 'Escape' || !event.shiftKey) return true;
    this.terminal.blur();
    this.again.hidden ? document.querySelector('#main')?.focus() : this.again.focus();
    return false;
  }

  /** Connect to a program that the page has not shown before. */
  #look() {
    const told = document.querySelector('#terminal-source');
    if (!told?.dataset.socket || told.dataset.key === this.#key) return;
    this.#key = told.dataset.key;
    this.#over = false;
    this.terminal.options.disableStdin = false;
    this.#hangUp();
    this.#connect();
  }

  #connect() {
    clearTimeout(this.#timer);
    const told = document.querySelector('#terminal-source');
    const url = new URL(told?.dataset.socket || this.url, location.href);
    url.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:';
    this.url = url.href;
    this.#hangUp();
    this.#early = [];
    this.again.hidden = true;
    const socket = this.#socket = new WebSocket(url);
    const frames = new Frames();
    socket.binaryType = 'arraybuffer';
    this.#tell('Connecting');
    socket.addEventListener('open', () => {
      this.terminal.reset();
      this.#wait = 1000;
      this.#send(hello(this.terminal.rows, this.terminal.cols, true));
      for (const bytes of this.#early.splice(0)) this.#send(bytes);
      this.#tell('Connected');
    });
    socket.addEventListener('message', ({data}) => {
      for (const [kind, payload] of frames.take(data)) this.#take(kind, payload);
    });
    socket.addEventListener('close', (event) => socket === this.#socket && this.#closed(event));
  }

  #hangUp() {
    const socket = this.#socket;
    this.#socket = null;
    if (socket?.readyState === WebSocket.OPEN) socket.send(frame(KIND.DETACH)); // the program stays
    socket?.close();
  }

  #closed(event) {
    this.#socket = null;
    if (this.#over) return;
    if (event.code > REFUSED) {
      this.#tell(event.reason.replace(/^[A-Z_]+: /, '') || 'The terminal was refused');
      this.again.hidden = false;
      return;
    }
    this.#tell('Connection lost; connecting again');
    this.again.hidden = false;
    this.#timer = setTimeout(() => this.isConnected && this.#connect(), this.#wait);
    this.#wait = Math.min(2 * this.#wait, LONGEST_WAIT_MS);
  }

  #take(kind, payload) {
    if (kind === KIND.STDOUT || kind === KIND.STDERR) this.terminal.write(payload.slice());
    else if (kind === KIND.NOTE) this.#tell(new TextDecoder().decode(payload));
    else if (kind === KIND.EXIT) this.#ended(JSON.parse(new TextDecoder().decode(payload)));
  }

  #ended(report) {
    this.#over = true;
    this.terminal.options.disableStdin = true;
    this.#tell(`The program has ended with status ${report.status}`);
    say('The program has ended');
  }

  #type(bytes) {
    for (let at = 0; at < bytes.length; at += PIECE) this.#sendSoon(frame(KIND.STDIN, bytes.subarray(at, at + PIECE)));
  }

  #send(bytes) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(bytes);
  }

  /** What is typed while the connection is made is sent when it stands; while there is none it goes nowhere. */
  #sendSoon(bytes) {
    if (this.#socket?.readyState === WebSocket.CONNECTING && this.#early.length < MOST_EARLY) this.#early.push(bytes);
    else this.#send(bytes);
  }

  #tell(said) {
    this.status.textContent = said;
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
