// Browsers start no worker from file://. There, the script of the search runs in a frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "";
      this.started = new Promise((loaded) => { this.frame.onload = loaded; }).then(() => {
        const scope = this.frame.contentWindow;
        const load = (source) => new Promise((loaded, failed) => {
          const script = scope.document.createElement("script");
          Object.assign(script, { src: source, onload: loaded, onerror: failed });
          scope.document.head.append(script);
        });
        scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        scope.importScripts = async (...sources) => {
          for (const source of sources) await load(source);
        };
        return load(url).then(() => scope);
      });
      document.body.append(this.frame);
    }

    postMessage(data) {
      this.started.then((scope) => scope.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
