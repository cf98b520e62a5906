'use strict';
/** Colours of terminal output as text in elements. Other escape sequences are removed; nothing is interpreted as HTML. */

// Sequences that move cursors and set titles: CSI except SGR (m), OSC, and the short ones.
const OTHERS = /\x1b(?:\[[0-?]*[ -/]*[@-ln-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])/g;
const INCOMPLETE = /\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]{0,256}\x1b?)?$/;
const SGR = /\x1b\[([0-9;:]{0,64})m/g;
const LEVELS = [0, 95, 135, 175, 215, 255];

const rgb = (red, green, blue) => `rgb(${red & 255} ${green & 255} ${blue & 255})`;

/** Return one of the 256 colours: a name of the style sheet for the first 16. */
function indexed(number) {
  if (number < 16) return `c${number}`;
  if (number >= 232) return rgb(...Array(3).fill(8 + 10 * (number - 232)));
  const at = number - 16;
  return rgb(LEVELS[Math.floor(at / 36)], LEVELS[Math.floor(at / 6) % 6], LEVELS[at % 6]);
}

/** One stream of output; `style` is in force at its end. */
export class Ansi {
  style = {};
  #rest = '';

  /** Return text with colours only; an incomplete sequence stays for the next call. */
  take(text) {
    const whole = this.#rest + text;
    const cut = INCOMPLETE.exec(whole);
    this.#rest = cut ? cut[0] : '';
    return whole.slice(0, whole.length - this.#rest.length).replace(OTHERS, '');
  }

  /** Replace the content of an element by a line that begins with a style, and return the style at its end. */
  static draw(element, line, style) {
    if (!line.includes('\x1b') && !Object.keys(style).length) {
      element.textContent = line;
      return style;
    }
    const pieces = [];
    let at = 0;
    for (const match of line.matchAll(SGR)) {
      pieces.push(piece(line.slice(at, match.index), style));
      style = changed(style, match[1]);
      at = match.index + match[0].length;
    }
    pieces.push(piece(line.slice(at), style));
    element.replaceChildren(...pieces.filter((node) => node.textContent));
    return style;
  }
}

function piece(text, style) {
  if (!Object.keys(style).length) return document.createTextNode(text);
  const made = document.createElement('span');
  made.textContent = text;
  for (const name of ['bold', 'faint', 'italic', 'underline', 'inverse']) if (style[name]) made.classList.add(`sgr-${name}`);
  for (const side of ['fg', 'bg']) {
    const colour = style[side];
    if (colour?.startsWith('c')) made.classList.add(`${side}-${colour.slice(1)}`);
    else if (colour) made.style[side === 'fg' ? 'color' : 'backgroundColor'] = colour;
  }
  return made;
}

const ON = {1: 'bold', 2: 'faint', 3: 'italic', 4: 'underline', 7: 'inverse'};
const OFF = {22: ['bold', 'faint'], 23: ['italic'], 24: ['underline'], 27: ['inverse'], 39: ['fg'], 49: ['bg']};

function changed(before, codes) {
  let style = {...before};
  const left = codes.split(/[;:]/).map(Number);
  while (left.length) {
    const code = left.shift();
    if (code === 0) style = {};
    else if (ON[code]) style[ON[code]] = true;
    else if (OFF[code]) for (const name of OFF[code]) delete style[name];
    else if (code === 38 || code === 48) {
      const kind = left.shift();
      const colour = kind === 5 ? indexed(Math.min(left.shift() || 0, 255)) : kind === 2 ? rgb(...left.splice(0, 3)) : '';
      if (colour) style[code === 38 ? 'fg' : 'bg'] = colour;
    } else if (code >= 30 && code <= 37) style.fg = `c${code - 30}`;
    else if (code >= 90 && code <= 97) style.fg = `c${code - 82}`;
    else if (code >= 40 && code <= 47) style.bg = `c${code - 40}`;
    else if (code >= 100 && code <= 107) style.bg = `c${code - 92}`;
  }
  return style;
}
