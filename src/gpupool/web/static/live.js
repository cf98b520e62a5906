'use strict';
/**
 * Keeps the page up to date. While the page is visible there is one stream, on which the server says "changed"
 * at a pace that limits its load; then the page's own URL is requested again and <main> is morphed into the answer.
 * Focus, scrolling, open dialogs, typed text and elements with `data-keep` do not change.
 */
import {Idiomorph} from './vendor/idiomorph/idiomorph.esm.js';
import {localise} from './times.js';

const LOCK_WAIT_MS = 200; // a free lock is granted sooner

/** Return whether a field has input that the server does not have. */
function touched(field) {
  if (field.type === 'checkbox' || field.type === 'radio') return field.checked !== field.defaultChecked;
  if (field.tagName === 'SELECT') return [...field.options].some((option) => option.selected !== option.defaultSelected);
  return field.value !== field.defaultValue;
}

const CALLBACKS = {
  beforeNodeMorphed(old) {
    if (old.nodeType !== Node.ELEMENT_NODE) return true;
    if ('keep' in old.dataset) return false;
    return !(/^(INPUT|SELECT|TEXTAREA)$/.test(old.tagName) && old.type !== 'hidden' && touched(old));
  },
  beforeNodeRemoved: (node) => !(node.nodeType === Node.ELEMENT_NODE && 'keep' in node.dataset),
  beforeAttributeUpdated: (name, node) => !(name === 'open' && /^(DETAILS|DIALOG)$/.test(node.tagName)) && !(name === 'class' && node.classList.contains('at')),
};

/** Morph <main> into a new one; exported for pages that load more themselves. */
export function morph(main, next) {
  localise(next);
  Idiomorph.morph(main, next, {morphStyle: 'outerHTML', ignoreActiveValue: true, restoreFocus: true, callbacks: CALLBACKS});
  document.dispatchEvent(new CustomEvent('gpupool:updated'));
}

/** @param {(text: string) => void} announce announces a text to screen readers */
export function startLive(announce) {
  const mode = () => document.querySelector('main').dataset.live;
  const sign = document.querySelector('[data-live-state]');
  if (!sign || mode() === 'off') return;
  let [source, channel, release, abort, rate] = [null, null, null, null, ''];
  let tag = '';
  let seen = document.body.dataset.seen; // number of the last event when the page was rendered
  let [busy, pending, stale, isConnected] = [false, false, false, true];

  function show(connected) {
    if (connected !== isConnected) announce(connected ? 'Reconnected' : 'Connection lost: this page is not up to date');
    isConnected = connected;
    sign.textContent = connected ? '● Live' : '○ Not connected';
    sign.classList.toggle('state-good', connected);
    sign.classList.toggle('state-bad', !connected);
  }

  async function refresh() {
    if (mode() === 'off') return close(); // the page no longer changes
    if (channel && mode() !== rate) { // or it changes at another rate
      close();
      open();
    }
    if (busy) {
      pending = true;
      return;
    }
    busy = true;
    try {
      await fetchAndMorph();
      if (stale) show(true);
      stale = false;
    } catch {
      stale = true; // what the page shows may be old
      show(false);
    } finally {
      busy = false;
    }
    if (pending) {
      pending = false;
      refresh();
    }
  }

  async function fetchAndMorph() {
    const headers = tag ? {'X-Live': '1', 'If-None-Match': tag} : {'X-Live': '1'};
    const answer = await fetch(location.href, {headers, cache: 'no-store'});
    if (answer.status === 401) return location.reload(); // signed out: the page shows that
    if (answer.status === 204) return;
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const text = await answer.text();
    if (document.hidden) return;
    tag = answer.headers.get('etag') ?? '';
    const next = new DOMParser().parseFromString(text, 'text/html').querySelector('main');
    if (next) morph(document.querySelector('main'), next);
  }

  // Browsers allow few connections to a server. Windows of one browser with the same rate share a stream:
  // the window that has the lock listens, and notifies the others.

  function open() {
    if (channel || document.hidden) return;
    rate = mode();
    channel = new BroadcastChannel(`gpupool-live-${rate}`);
    channel.onmessage = ({data}) => (data === 'changed' ? refresh() : show(data === 'up'));
    abort = new AbortController();
    const asked = Date.now();
    navigator.locks.request(channel.name, {signal: abort.signal}, () => lead(Date.now() - asked > LOCK_WAIT_MS)).catch(() => {});
    setTimeout(() => { if (channel && !source) refresh(); }, LOCK_WAIT_MS); // another window listens: it does not know the state of this page
  }

  /** Listen for all windows; `late` if another one did before and may have missed events. Hold the lock until close. */
  function lead(late) {
    if (!channel) return undefined;
    source = new EventSource(`/live?often=${rate === 'often'}&seen=${late ? '' : seen}`);
    seen = ''; // from now on it is notified, or requests the page itself
    source.addEventListener('changed', () => { notify('changed'); refresh(); });
    source.addEventListener('open', () => {
      if (!isConnected || late) { // changes meanwhile were reported to no window
        notify('changed');
        refresh();
      }
      late = false;
      show(true);
      notify('up');
    });
    source.addEventListener('error', () => {
      show(false);
      notify('down');
      if (source?.readyState === EventSource.CLOSED) { // refused: the browser does not retry automatically
        close();
        setTimeout(() => { refresh(); open(); }, 5000);
      }
    });
    return new Promise((done) => { release = done; });
  }

  const notify = (what) => channel?.postMessage(what);

  function close() {
    source?.close();
    release?.();
    abort?.abort();
    channel?.close();
    source = channel = release = abort = null;
  }

  document.addEventListener('visibilitychange', () => {
    if (document.hidden) return close();
    refresh();
    open();
  });
  addEventListener('pagehide', close);
  addEventListener('pageshow', (event) => { // restored from the browser's page cache
    if (!event.persisted) return;
    refresh();
    open();
  });
  show(true);
  open();
  if (document.querySelector('[data-rest]')) refresh(); // a large page comes in two parts: the first screen, then everything
}
