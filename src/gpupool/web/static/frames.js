'use strict';
/** The frames of a program's terminal, as domain/protocol/frames.py has them: kind, length (big-endian), payload. */

export const KIND = {STDIN: 1, RESIZE: 3, SIGNAL: 4, DETACH: 5, HELLO: 6, STDOUT: 65, STDERR: 66, STARTED: 67, EXIT: 68, NOTE: 69};
export const LIMIT = 1 << 20;
const HEAD = 5;
const encoder = new TextEncoder();

/** Encode one frame. @param {number} kind @param {Uint8Array} payload */
export function frame(kind, payload = new Uint8Array()) {
  const bytes = new Uint8Array(HEAD + payload.length);
  const view = new DataView(bytes.buffer);
  view.setUint8(0, kind);
  view.setUint32(1, payload.length);
  bytes.set(payload, HEAD);
  return bytes;
}

export const text = (value) => encoder.encode(value);
export const hello = (rows, columns, stdin) => frame(KIND.HELLO, text(JSON.stringify({version: 1, rows, columns, stdin})));

/** Encode the terminal's new size. */
export function resize(rows, columns) {
  const payload = new Uint8Array(4);
  new DataView(payload.buffer).setUint16(0, rows);
  new DataView(payload.buffer).setUint16(2, columns);
  return frame(KIND.RESIZE, payload);
}

/** Decode whole frames from bytes that arrive in any pieces. */
export class Frames {
  #rest = new Uint8Array();

  /** @param {ArrayBuffer} data @returns {Array<[number, Uint8Array]>} */
  take(data) {
    const bytes = new Uint8Array(this.#rest.length + data.byteLength);
    bytes.set(this.#rest);
    bytes.set(new Uint8Array(data), this.#rest.length);
    const found = [];
    let at = 0;
    while (bytes.length - at >= HEAD) {
      const view = new DataView(bytes.buffer, at);
      const end = at + HEAD + view.getUint32(1);
      if (bytes.length < end) break;
      found.push([view.getUint8(0), bytes.subarray(at + HEAD, end)]);
      at = end;
    }
    this.#rest = bytes.slice(at);
    return found;
  }
}
