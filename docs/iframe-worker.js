/* Search without a server: a browser starts no worker from the file system, so there the search's
   worker runs in a hidden frame of the same page. */
if (location.protocol === "file:") {
  window.Worker = class FrameWorker extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.append(frame)
      this.scope = frame.contentWindow
      this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.scope.document.createElement("script")
      script.src = new URL(url, location.href)
      script.onload = () => {
        this.waiting.forEach(data => this.deliver(data))
        this.waiting = null
      }
      this.scope.document.body.append(script)
    }

    deliver(data) {
      this.scope.dispatchEvent(new MessageEvent("message", { data }))
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.deliver(data)
    }

    terminate() {
      this.scope.frameElement.remove()
    }
  }
}
