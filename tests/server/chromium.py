"""A page in headless Chromium, spoken to over a pipe (the DevTools protocol; no package is needed)."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
)


def program():
    """Its path; None: it is not installed (Debian's package chromium)."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """Closed at the end of a with block. problems: what the console and the page's errors said; urls: what it asked for."""

    def __init__(self, width=1280, height=900):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_it, self.out = os.pipe()
        self.into, from_it = os.pipe()
        far = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (to_it, from_it)]  # neither is in the other's way

        def as_3_and_4():
            os.dup2(far[0], 3)
            os.dup2(far[1], 4)

        self.process = subprocess.Popen(
            [program(), *FLAGS, f"--user-data-dir={self.folder.name}", "about:blank"],
            preexec_fn=as_3_and_4,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (to_it, from_it, *far):
            os.close(fd)
        self.buffer, self.n, self.problems, self.urls = b"", 0, [], []
        self.session = self.context = None
        self.fresh(width, height)

    def fresh(self, width=1280, height=900):
        """A page that shares nothing with the one before: as another browser, in a tenth of the time."""
        old, self.session = self.context, None
        if old:
            self.call("Target.disposeBrowserContext", browserContextId=old)
        self.context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.size(width, height)
        self.problems, self.urls = [], []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        os.close(self.into)
        os.close(self.out)
        self.folder.cleanup()

    def receive(self, seconds):
        """The next message, or None; notes what went wrong in the page."""
        end = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            if not select.select([self.into], [], [], max(0, end - time.monotonic()))[0]:
                return None
            part = os.read(self.into, 1 << 20)
            assert part, "chromium ended"
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        m = json.loads(message)
        p = m.get("params", {})
        if m.get("method") == "Runtime.exceptionThrown":
            self.problems.append(p["exceptionDetails"])
        elif m.get("method") == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.problems.append(p["args"])
        elif m.get("method") == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.problems.append(p["entry"])
        elif m.get("method") == "Network.requestWillBeSent":
            self.urls.append(p["request"]["url"])
        return m

    def call(self, method, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            m = self.receive(60)
            assert m, f"{method}: no answer"
            if m.get("id") == self.n:
                assert "error" not in m, (method, m)
                return m["result"]

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def colours(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url):
        self.call("Page.navigate", url=url)

    def reload(self):
        self.run("window.is_old = true; location.reload()")
        self.until("!window.is_old && document.readyState === 'complete'")

    def run(self, script):
        """The value of an expression in the page."""
        r = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in r, r
        return r["result"].get("value")

    def until(self, script, seconds=30):
        """Its value, once it is true. What is not there yet may be looked into: that is not an error, but not yet."""
        end, why = time.monotonic() + seconds, ""
        while time.monotonic() < end:
            try:
                if value := self.run(script):
                    return value
            except AssertionError as e:
                why = str(e)
            self.receive(0.05)
        raise AssertionError(f"not within {seconds} s: {script}; {why} {self.run('document.body.innerText')[:2000]}")

    def key(self, name, code=0):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def picture(self, path):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
