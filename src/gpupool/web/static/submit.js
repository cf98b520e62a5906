'use strict';
/** The submit form: the fields of the kind, and the equivalent command line while the user types. */

const TYPING_PAUSE_MS = 350;
const form = document.querySelector('#submit-form');

/** Show the fields of the selected kind. */
function showFields() {
  const kind = form.elements.kind.value;
  for (const part of form.querySelectorAll('[data-kind], [data-not-kind]')) {
    const {kind: only, notKind: never} = part.dataset;
    part.hidden = (only !== undefined && only !== kind) || (never !== undefined && never === kind);
  }
}

let timer = 0;
let request = null;

async function preview() {
  request?.abort();
  request = new AbortController();
  const body = new URLSearchParams(new FormData(form));
  try {
    const answer = await fetch(form.dataset.preview, {method: 'POST', body, signal: request.signal});
    if (!answer.ok) return;
    const next = new DOMParser().parseFromString(await answer.text(), 'text/html').querySelector('#preview-body');
    if (next) document.querySelector('#preview').replaceChildren(next);
  } catch {
    // changed meanwhile, or not connected: keep the preview
  }
}

form.addEventListener('input', () => {
  showFields();
  clearTimeout(timer);
  timer = setTimeout(preview, TYPING_PAUSE_MS);
});
showFields();
