// Values as text: the same words and units as in the command line.

export const MEANINGS = {
  ok: ["✓", "ok"],
  error: ["✗", "failed"],
  interrupted: ["⚡", "interrupted"],
  cancelled: ["⊘", "cancelled"],
  skipped: ["–", "skipped"],
  running: ["▶", "running"],
};

const digits = (value) => (value < 99.95 ? value.toFixed(1) : value.toFixed(0));

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 0.0009995) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 0.9995) return `${digits(seconds * 1e3)} ms`;
  if (seconds < 59.95) return `${digits(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} days`;
}

export function bytes(count) {
  if (count === null || count === undefined) return "";
  if (Math.abs(count) < 1000) return `${count} B`;
  let value = count / 1000;
  for (const unit of ["kB", "MB", "GB"]) {
    if (Math.abs(value) < 999.5) return `${digits(value)} ${unit}`;
    value /= 1000;
  }
  return `${digits(value)} TB`;
}

export const seconds = (row, now) => Math.max(0, ((row.end_unix_nano ?? now * 1e6) - row.start_unix_nano) / 1e9);

export function time(unixNano) {
  if (!unixNano) return "";
  const date = new Date(unixNano / 1e6);
  const pad = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

export const ago = (unixNano) => `${duration(Math.max(0, Date.now() / 1e3 - unixNano / 1e9))} ago`;

export const title = (row) => (row.kind === "operation" ? `checkpoint.${row.name}` : row.kind === "task" ? `task ${row.name}` : row.name);

export function value(content) {
  if (Array.isArray(content)) return content.map(value).join(", ");
  return content !== null && typeof content === "object" ? JSON.stringify(content) : String(content);
}
