'use strict';
/** The submit form: fields that go with the kind, and the command line that says the same, while one types. */

const PAUSE_MS = 350;
const form = document.querySelector('#submit-form');

/** Show the fields that the chosen kind has. */
function showFields() {
  const kind = form.elements.kind.value;
  for (const part of form.querySelectorAll('[data-kind], [data-not-kind]')) {
    const {kind: only, notKind: never} = part.dataset;
    part.hidden = (only !== undefined && only !== kind) || (never !== undefined && never === kind);
  }
}

let timer = 0;
let asked = null;

async function preview() {
  asked?.abort();
  asked = new AbortController();
  const body = new URLSearchParams(new FormData(form));
  try {
    const answer = await fetch(form.dataset.preview, {method: 'POST', body, signal: asked.signal});
    if (!answer.ok) return;
    const next = new DOMParser().parseFromString(await answer.text(), 'text/html').querySelector('#preview-body');
    if (next) document.querySelector('#preview').replaceChildren(next);
  } catch {
    // typed on meanwhile, or not connected: the preview stays as it was
  }
}

form.addEventListener('input', () => {
  showFields();
  clearTimeout(timer);
  timer = setTimeout(preview, PAUSE_MS);
});
showFields();
