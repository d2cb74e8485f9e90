// Browsers refuse workers on file://, so the search of the site runs in a hidden frame there.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.listen = event => {
        if (event.source !== this.inner) return;
        this.dispatchEvent(new MessageEvent("message", {data: event.data}));
        if (this.onmessage) this.onmessage(event);
      };
      addEventListener("message", this.listen);
      const page = this.inner.document;
      page.open();
      page.write("<!doctype html><body></body>");
      page.close();
      const add = (source, text) => new Promise((resolve, reject) => {
        const script = page.createElement("script");
        if (source) {
          script.src = source;
          script.onload = resolve;
          script.onerror = reject;
        } else {
          script.textContent = text;
          resolve();
        }
        page.body.append(script);
      });
      this.inner.addScript = source => add(source);
      add(null, "postMessage = message => parent.postMessage(message, '*');"
        + "importScripts = (...all) => all.reduce("
        + "(before, one) => before.then(() => addScript(one)), Promise.resolve());");
      this.ready = add(String(url));
    }
    postMessage(message) {
      this.ready.then(() =>
        this.inner.dispatchEvent(new MessageEvent("message", {data: message})));
    }
    terminate() {
      removeEventListener("message", this.listen);
      this.inner.frameElement.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
