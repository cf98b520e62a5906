'use strict';
/** Times in the viewer's time zone, and their age, in the format of the server. */

const MOMENT = new Intl.DateTimeFormat(undefined, {
  year: 'numeric', month: '2-digit', day: '2-digit', hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23',
});
const EXACT = new Intl.DateTimeFormat(undefined, {dateStyle: 'full', timeStyle: 'long', hourCycle: 'h23'});

/** Format seconds as "42s", "3m10s", "2h05m", "4d03h". */
export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (value) => String(value).padStart(2, '0');
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor((whole % 86400) / 3600), Math.floor((whole % 3600) / 60)];
  if (days) return `${days}d${two(hours)}h`;
  if (hours) return `${hours}h${two(minutes)}m`;
  return minutes ? `${minutes}m${two(whole % 60)}s` : `${whole}s`;
}

/** Format a time as in pages. */
export function moment(epochS) {
  return MOMENT.format(epochS * 1000);
}

/** Set the text, and as title the exact time with its age. */
function put(node, text, now) {
  if (node.textContent !== text) node.textContent = text;
  const at = new Date(node.dateTime);
  const apart = now - at / 1000;
  const title = `${EXACT.format(at)}, ${apart < 0 ? `in ${duration(-apart)}` : `${duration(apart)} ago`}`;
  if (node.title !== title) node.title = title;
}

/** Rewrite every <time> below `root`. */
export function localise(root) {
  const now = Date.now() / 1000;
  for (const node of root.querySelectorAll('time[data-when]')) put(node, moment(Number(node.dataset.when)), now);
  for (const node of root.querySelectorAll('time[data-ago]')) put(node, `${duration(now - Number(node.dataset.ago))} ago`, now);
  for (const node of root.querySelectorAll('time[data-since]')) put(node, duration(now - Number(node.dataset.since)), now);
}
