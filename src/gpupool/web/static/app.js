'use strict';
/**
 * Scripts of every page: times in the viewer's time zone, confirmation of irreversible actions, keyboard, theme,
 * and live updates (live.js).
 */
import {startKeys} from './keys.js';
import {localise} from './times.js';

const one = (selector) => document.querySelector(selector);

/** Ask for confirmation before a form is sent. What the question names is sent, even if the page has changed since. */
function startConfirmations() {
  const dialog = one('#confirm');
  let asked = null; // a copy of the form: an update of the page may remove it or make it that of another action
  document.addEventListener('submit', (event) => {
    const form = event.target;
    if (!form.dataset.confirm) return;
    event.preventDefault();
    asked = copyOf(form, event.submitter);
    one('#confirm-question').textContent = form.dataset.confirm;
    const button = event.submitter ?? form.querySelector('button');
    one('[data-confirm-yes]').textContent = button?.textContent.trim() || 'Yes';
    dialog.returnValue = 'no';
    dialog.showModal();
  });
  dialog.addEventListener('close', () => {
    if (dialog.returnValue === 'yes' && asked) {
      document.body.append(asked);
      asked.submit();
    }
    asked = null;
  });
}

/** Return a hidden form with the same address and the same values. */
function copyOf(form, submitter) {
  const copy = document.createElement('form');
  copy.hidden = true;
  copy.method = 'post';
  copy.setAttribute('action', form.getAttribute('action'));
  const values = [...new FormData(form)];
  if (submitter?.name) values.push([submitter.name, submitter.value]);
  for (const [name, value] of values) {
    const input = document.createElement('input');
    [input.type, input.name, input.value] = ['hidden', name, value];
    copy.append(input);
  }
  return copy;
}

/** Handle buttons that need no server. */
function startButtons() {
  document.addEventListener('click', (event) => {
    const button = event.target.closest?.('button');
    if (!button) return;
    if ('dismiss' in button.dataset) button.parentElement.remove();
    if ('copy' in button.dataset) copy(button);
    if ('menu' in button.dataset) toggleMenu(button);
    if ('themeSwitch' in button.dataset) nextTheme();
    if ('shortcuts' in button.dataset) one('#shortcuts').showModal();
  });
}

/** Select all rows of a table with one checkbox. */
function startSelection() {
  document.addEventListener('change', ({target}) => {
    if (!('pickAll' in target.dataset)) return;
    for (const box of document.querySelectorAll('[data-pick]')) box.checked = target.checked;
  });
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    announce('Copied');
    button.textContent = 'Copied';
  } catch {
    getSelection().selectAllChildren(button.parentElement.querySelector('code'));
  }
}

function toggleMenu(button) {
  const open = one('#menu').classList.toggle('open');
  button.setAttribute('aria-expanded', String(open));
}

/** Announce a text to screen readers. */
export function announce(text) {
  one('#announcement').textContent = text;
}

const THEMES = ['auto', 'light', 'dark'];

function nextTheme() {
  const root = document.documentElement;
  const next = THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length];
  root.dataset.theme = next;
  document.cookie = `gpupool_theme=${next}; path=/; max-age=31536000; samesite=lax`;
  showTheme();
  announce(`Theme: ${next}`);
}

function showTheme() {
  const button = one('[data-theme-switch]');
  if (button) button.textContent = `Theme: ${document.documentElement.dataset.theme}`;
}

localise(document);
setInterval(() => localise(document), 5000);
startConfirmations();
startButtons();
startSelection();
startKeys();
showTheme();
/** Run a function after the first paint, or at once in a hidden page. */
function afterFirstPaint(work) {
  let done = false;
  const go = () => {
    if (!done) setTimeout(work);
    done = true;
  };
  if (document.hidden) return go();
  new PerformanceObserver(go).observe({type: 'paint', buffered: true});
  return setTimeout(go, 1000);
}

// Parts that the first paint does not need are loaded after it: the rest of a large page, and `data-module` scripts.
afterFirstPaint(() => {
  import('./live.js').then(({startLive}) => startLive(announce));
  for (const part of document.querySelectorAll('[data-module]')) import(part.dataset.module);
});
