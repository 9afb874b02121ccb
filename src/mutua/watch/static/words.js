// Numbers and times as people read them.

export function shown(value, metric) {
  if (value === null || value === undefined) return "–";
  return metric.percent ? (100 * value).toFixed(1) : Number(value.toPrecision(4)).toString();
}

export function withUnit(value, metric) {
  return value === null || value === undefined ? "–" : shown(value, metric) + (metric.percent ? " %" : "");
}

export function size(bytes) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (bytes < 1000) return unit === "B" ? `${bytes} B` : `${bytes.toFixed(1)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} TB`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.995) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.round(seconds / 86400)} days`;
}

export function ago(then, now) {
  if (then === null || then === undefined) return "never";
  const seconds = Math.max(0, now - then);
  if (seconds < 2) return "just now";
  const round = (unit) => Math.floor(seconds / unit);
  if (seconds < 60) return `${round(1)} s ago`;
  if (seconds < 3600) return `${round(60)} min ago`;
  return seconds < 172800 ? `${round(3600)} h ago` : `${round(86400)} days ago`;
}

export function several(number, one, many) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : (many ?? `${one}s`)}`;
}

export function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
