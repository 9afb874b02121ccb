// One stream from the server for what is on the page. A page that nobody sees listens to nothing.

let close = () => {};

const line = document.getElementById("line");

function state(text, kind) {
  line.textContent = text;
  line.className = `line ${kind}`;
}

export function follow(path, parameters, handlers, lost) {
  close();
  const address = `${path}?${new URLSearchParams(parameters)}`;
  let source = null;
  const listen = () => {
    if (document.hidden || source !== null) return;
    state("connecting", "waiting");
    source = new EventSource(address);
    source.onopen = () => state("live", "live");
    source.onerror = () => {
      if (source !== null && source.readyState === EventSource.CLOSED) {
        state("closed", "lost");
        lost();
      } else {
        state("the server does not answer", "lost");
      }
    };
    for (const [name, handler] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handler(JSON.parse(event.data)));
    }
  };
  const end = () => {
    if (source !== null) source.close();
    source = null;
  };
  const seen = () => {
    if (document.hidden) {
      end();
      state("paused", "waiting");
    } else {
      listen();
    }
  };
  document.addEventListener("visibilitychange", seen);
  close = () => {
    document.removeEventListener("visibilitychange", seen);
    end();
  };
  listen();
}
