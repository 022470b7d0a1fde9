// Talks to the server: requests for pages, and a WebSocket for what changes.

export async function load(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(given).toString();
  const response = await fetch(`/api/${path}${query ? `?${query}` : ""}`, { headers: { accept: "application/json" } });
  const body = await response.json();
  if (!response.ok) throw new Error(body.error || `the server answered ${response.status}`);
  return body;
}

const RETRY_MILLISECONDS = 2000;

// Calls onUpdate with each update, and onState with "live", "paused" or "offline".
export class Live {
  constructor(onUpdate, onState) {
    this.onUpdate = onUpdate;
    this.onState = onState;
    this.isPaused = false;
    this.connect();
  }

  connect() {
    if (this.isPaused) return;
    this.socket = new WebSocket(`ws://${location.host}/api/live`);
    this.socket.onopen = () => this.onState("live");
    this.socket.onmessage = (message) => this.onUpdate(JSON.parse(message.data));
    this.socket.onclose = () => {
      if (this.isPaused) return;
      this.onState("offline");
      setTimeout(() => this.connect(), RETRY_MILLISECONDS);
    };
  }

  setPaused(isPaused) {
    this.isPaused = isPaused;
    this.onState(isPaused ? "paused" : "offline");
    if (isPaused) this.socket.close();
    else this.connect();
  }
}
