'use strict';
/**
 * What every page does beyond plain HTML: times in the viewer's zone, questions before what cannot be undone,
 * keyboard, theme, and keeping the page up to date (live.js).
 */
import {startKeys} from './keys.js';
import {localise} from './times.js';

const one = (selector) => document.querySelector(selector);

/** Ask the question of a form before it is sent. */
function startQuestions() {
  const dialog = one('#confirm');
  let waiting = null;
  document.addEventListener('submit', (event) => {
    const form = event.target;
    if (!form.dataset.confirm || form === waiting) return;
    event.preventDefault();
    waiting = form;
    one('#confirm-question').textContent = form.dataset.confirm;
    const button = event.submitter ?? form.querySelector('button');
    one('[data-confirm-yes]').textContent = button?.textContent.trim() || 'Yes';
    dialog.returnValue = 'no';
    dialog.showModal();
  });
  dialog.addEventListener('close', () => {
    const form = waiting;
    if (dialog.returnValue === 'yes' && form) form.requestSubmit();
    waiting = null;
  });
}

/** Small buttons that need no server. */
function startButtons() {
  document.addEventListener('click', (event) => {
    const button = event.target.closest?.('button');
    if (!button) return;
    if ('dismiss' in button.dataset) button.parentElement.remove();
    if ('copy' in button.dataset) copy(button);
    if ('menu' in button.dataset) fold(button);
    if ('themeSwitch' in button.dataset) nextTheme();
    if ('shortcuts' in button.dataset) one('#shortcuts').showModal();
  });
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    say('Copied');
    button.textContent = 'Copied';
  } catch {
    getSelection().selectAllChildren(button.parentElement.querySelector('code'));
  }
}

function fold(button) {
  const open = one('#menu').classList.toggle('open');
  button.setAttribute('aria-expanded', String(open));
}

/** Tell people who listen to the page rather than look at it. */
export function say(text) {
  one('#said').textContent = text;
}

const THEMES = ['auto', 'light', 'dark'];

function nextTheme() {
  const root = document.documentElement;
  const next = THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length];
  root.dataset.theme = next;
  document.cookie = `gpupool_theme=${next}; path=/; max-age=31536000; samesite=lax`;
  showTheme();
  say(`Theme: ${next}`);
}

function showTheme() {
  const button = one('[data-theme-switch]');
  if (button) button.textContent = `Theme: ${document.documentElement.dataset.theme}`;
}

localise(document);
setInterval(() => localise(document), 5000);
startQuestions();
startButtons();
startKeys();
showTheme();
/** Do something once the page has been painted, or at once where nobody sees it. */
function whenSeen(work) {
  let done = false;
  const go = () => {
    if (!done) setTimeout(work);
    done = true;
  };
  if (document.hidden) return go();
  new PerformanceObserver(go).observe({type: 'paint', buffered: true});
  return setTimeout(go, 1000);
}

// What is not needed to see the page waits until it can be seen: the rest of a large page, and scripts of `data-module`.
whenSeen(() => {
  import('./live.js').then(({startLive}) => startLive(say));
  for (const part of document.querySelectorAll('[data-module]')) import(part.dataset.module);
});
