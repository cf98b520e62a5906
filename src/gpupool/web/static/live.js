'use strict';
/**
 * Keeps the page up to date. While the page is visible there is one stream, on which the server says "changed"
 * at a pace that it can afford; then the page's own address is asked for again and <main> is morphed into the answer.
 * Focus, scrolling, open dialogs, what is typed and whatever has `data-keep` stay as they are.
 */
import {Idiomorph} from './vendor/idiomorph/idiomorph.esm.js';
import {localise} from './times.js';

const SOON_MS = 200; // a lock that nobody has is there sooner

/** Whether somebody has put something into a field that the server does not know of. */
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

/** Change <main> into another; exported for pages that load more by themselves. */
export function morph(main, next) {
  localise(next);
  Idiomorph.morph(main, next, {morphStyle: 'outerHTML', ignoreActiveValue: true, restoreFocus: true, callbacks: CALLBACKS});
  document.dispatchEvent(new CustomEvent('gpupool:updated'));
}

/** @param {(text: string) => void} say tells people who listen */
export function startLive(say) {
  const mode = () => document.querySelector('main').dataset.live;
  const sign = document.querySelector('[data-live-state]');
  if (!sign || mode() === 'off') return;
  let [source, channel, release, abort, kept] = [null, null, null, null, ''];
  let tag = '';
  let seen = document.body.dataset.seen; // what had happened when the page was made
  let [busy, again, fine] = [false, false, true];

  function show(connected) {
    if (connected !== fine) say(connected ? 'Connected again' : 'Connection lost: this page is not up to date');
    fine = connected;
    sign.textContent = connected ? '● Live' : '○ Not connected';
    sign.classList.toggle('state-good', connected);
    sign.classList.toggle('state-bad', !connected);
  }

  async function look() {
    if (mode() === 'off') return close(); // the page has become one that does not change
    if (channel && mode() !== kept) { // or one that changes at another pace
      close();
      open();
    }
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      await fetchAndMorph();
    } catch {
      show(false);
    } finally {
      busy = false;
    }
    if (again) {
      again = false;
      look();
    }
  }

  async function fetchAndMorph() {
    const headers = tag ? {'X-Live': '1', 'If-None-Match': tag} : {'X-Live': '1'};
    const answer = await fetch(location.href, {headers, cache: 'no-store'});
    if (answer.status === 401) return location.reload(); // signed out: the page says so
    if (answer.status === 204 || !answer.ok) return;
    const text = await answer.text();
    if (document.hidden) return;
    tag = answer.headers.get('etag') ?? '';
    const next = new DOMParser().parseFromString(text, 'text/html').querySelector('main');
    if (next) morph(document.querySelector('main'), next);
  }

  // Browsers allow few connections to a server. Windows of one browser that follow at the same pace share a stream:
  // whoever has the lock listens, and tells the others.

  function open() {
    if (channel || document.hidden) return;
    kept = mode();
    channel = new BroadcastChannel(`gpupool-live-${kept}`);
    channel.onmessage = ({data}) => (data === 'changed' ? look() : show(data === 'up'));
    abort = new AbortController();
    const asked = Date.now();
    navigator.locks.request(channel.name, {signal: abort.signal}, () => lead(Date.now() - asked > SOON_MS)).catch(() => {});
    setTimeout(() => { if (channel && !source) look(); }, SOON_MS); // another listens: it does not know what this page has
  }

  /** Listen for all; `late` when others did before, who may have missed something. Holds the lock until it is closed. */
  function lead(late) {
    if (!channel) return undefined;
    source = new EventSource(`/live?often=${kept === 'often'}&seen=${late ? '' : seen}`);
    seen = ''; // from now on it is told, or looks by itself
    source.addEventListener('changed', () => { tell('changed'); look(); });
    source.addEventListener('open', () => {
      if (!fine || late) look();
      late = false;
      show(true);
      tell('up');
    });
    source.addEventListener('error', () => {
      show(false);
      tell('down');
      if (source?.readyState === EventSource.CLOSED) { // refused: the browser does not try again by itself
        close();
        setTimeout(() => { look(); open(); }, 5000);
      }
    });
    return new Promise((done) => { release = done; });
  }

  const tell = (what) => channel?.postMessage(what);

  function close() {
    source?.close();
    release?.();
    abort?.abort();
    channel?.close();
    source = channel = release = abort = null;
  }

  document.addEventListener('visibilitychange', () => {
    if (document.hidden) return close();
    look();
    open();
  });
  addEventListener('pagehide', close);
  addEventListener('pageshow', (event) => { // kept by the browser while another page was shown
    if (!event.persisted) return;
    look();
    open();
  });
  show(true);
  open();
  if (document.querySelector('[data-rest]')) look(); // a large page comes in two parts: what a screen shows, and all
}
