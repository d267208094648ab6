"""A headless Chromium over the DevTools protocol, spoken through pipes, so that nothing besides the browser is needed."""
import json
import os
import shutil
import subprocess
import time


def find_chromium():
    """The browser itself where it is known to be: Debian's `chromium` is a script that starts it."""
    if os.path.exists("/usr/lib/chromium/chromium"):
        return "/usr/lib/chromium/chromium"
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    def __init__(self, profile):
        to_browser, self.output = os.pipe()
        self.input, from_browser = os.pipe()
        command = [find_chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        def connect(): # the protocol's descriptors are 3 and 4
            to, back = os.dup(to_browser), os.dup(from_browser)
            os.dup2(to, 3)
            os.dup2(back, 4)
        self.process = subprocess.Popen(command, preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.buffer, self.events = 0, b"", []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "DOM"):
            self.call(domain + ".enable")

    def close(self):
        self.session = None
        self.call("Browser.close")
        self.process.wait(timeout=1800)
        os.close(self.input)
        os.close(self.output)

    def read(self):
        while b"\0" not in self.buffer:
            piece = os.read(self.input, 1 << 20)
            assert piece, "the browser ended"
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.output, data):]
        while (answer := self.read()).get("id") != self.number:
            if "method" in answer:
                self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def next_event(self, method):
        """The next event of this kind, which may have come already."""
        while True:
            for place, event in enumerate(self.events):
                if event["method"] == method:
                    return self.events.pop(place)["params"]
            self.events.append(self.read())

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def open(self, address):
        self.call("Page.navigate", url=address)
        self.next_event("Page.loadEventFired")

    def wait_for(self, expression):
        """Until the expression is true."""
        for _ in range(36_000):
            if self.evaluate(expression):
                return
            time.sleep(0.05)
        raise AssertionError(f"never true: {expression}; the page says: {self.evaluate('document.body.innerText')}")

    def size(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def press(self, key, code=None, text=None, modifiers=0):
        common = {"key": key, "code": code or key, "modifiers": modifiers,
                  "windowsVirtualKeyCode": {"Enter": 13, "Escape": 27, "ArrowUp": 38}.get(key, 0)}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def click(self, selector):
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def attach(self, selector, *files):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])
