'use strict';
/** Keyboard shortcuts: `?` help, `/` find, `g` and a letter: go to a page, `j` and `k`: next and previous table row. */

const SEQUENCE_TIMEOUT_MS = 1500; // between `g` and its letter

function typing(target) {
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.closest?.('[data-keys="own"]');
}

function step(by) {
  const rows = [...document.querySelectorAll('.listing tbody tr')].filter((row) => row.querySelector('a'));
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains('at') || row.contains(document.activeElement));
  const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
  rows.forEach((row) => row.classList.toggle('at', row === next));
  next.querySelector('a').focus();
}

function go(letter) {
  document.querySelector(`a[data-go="${CSS.escape(letter)}"]`)?.click();
}

function find() {
  const field = document.querySelector('[data-find]');
  field?.focus();
  field?.select();
  return Boolean(field);
}

export function startKeys() {
  let armedUntil = 0;
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === 'Escape' && typing(event.target) && event.target.matches('[data-find]')) event.target.blur();
    if (typing(event.target) || document.querySelector('dialog[open]')) return;
    if (armedUntil > event.timeStamp) {
      armedUntil = 0;
      go(event.key);
      return;
    }
    if (event.key === 'g') armedUntil = event.timeStamp + SEQUENCE_TIMEOUT_MS;
    else if (event.key === '?') document.querySelector('#shortcuts').showModal();
    else if (event.key === '/' && find()) event.preventDefault();
    else if (event.key === 'j') step(1);
    else if (event.key === 'k') step(-1);
  });
}
