"""The page of a run that trains, in a real browser: it follows the run and stops it with a checkpoint; who may ask for what; and
the page that compares runs.

usage: live_page_test.py FVLM_ENGINE MAKE_SHAPES RECIPE MAKE_RUN; exit 77 without Chromium. With FVLM_SCREENSHOTS=DIR it also writes pictures."""
import base64
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from browser import Browser, find_chromium

if not find_chromium():
    print("Skipped\nthere is no Chromium: ./scripts/setup --oracles\n")
    sys.exit(77)

MAKE_RUN, RECIPE, SHAPES, ENGINE = sys.argv.pop(), sys.argv.pop(), sys.argv.pop(), sys.argv.pop()
scratch = tempfile.TemporaryDirectory()
root = Path(scratch.name)
MARKUP = "<img src=x onerror=alert(1)>"  # a run folder's name that is markup


def setUpModule():
    subprocess.run([SHAPES, "--out", root / "data", "--samples",
                    "captions=400,text=40,questions=400,pairs=40,heldout/questions=8,heldout/pairs=8"],
                   check=True, capture_output=True)


def train(run, *options):
    return [ENGINE, "train", RECIPE, "--arg", f"data={root / 'data'}", "--run-dir", root / run, "--device", "cpu", *options]


class Process:
    """One that says where its page is."""

    def __init__(self, command, environment={}):
        self.process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                        text=True, env={**os.environ, **environment})
        self.said = ""
        for line in self.process.stderr:
            self.said += line
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                self.port = int(found[1])
                return
        raise AssertionError(self.said)

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1800)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def ended(self):
        self.said += self.process.communicate(timeout=1800)[1]
        return self.process.returncode

    def interrupt(self):
        self.process.terminate()
        return self.ended()


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser(root / "profile")
        cls.browser.call("Page.addScriptToEvaluateOnNewDocument", source="""window.violations = [];
            addEventListener("securitypolicyviolation", event => violations.push(event.effectiveDirective))""")

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def text(self, selector):
        return self.browser.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def picture(self, name):
        if folder := os.environ.get("FVLM_SCREENSHOTS"):
            data = self.browser.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
            (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(data))

    def test_a_run_is_followed_and_stopped(self):
        run = Process(train(MARKUP, "--page", "0"))
        self.browser.size(1280, 900)
        self.browser.open(f"http://127.0.0.1:{run.port}/")
        self.browser.wait_for("document.getElementById('live-state').innerText === 'training'")
        self.browser.wait_for("document.querySelectorAll('.chart svg').length > 3")
        before = self.text(".cards")
        self.browser.wait_for(f"document.querySelector('.cards').innerText !== {json.dumps(before)}")
        self.browser.evaluate("document.querySelector('#live-lines').open = true")
        self.browser.wait_for(f"(document.querySelector('#live-log').innerText + document.body.innerText).includes({json.dumps(MARKUP)})")
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('img[src=x]').length"), 0)
        # A chart that came later can be read, too.
        self.browser.evaluate("""(() => { const area = document.querySelector('.chart .area'), box = area.getBoundingClientRect();
            area.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width / 2})) })()""")
        self.assertIn("step", self.text(".read"))
        self.picture("live")
        self.browser.size(390, 844, dark=True)
        self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth"), 390)
        self.picture("live-phone")
        self.browser.click("#live-stop")
        self.assertEqual(self.text("#live-stop"), "Stop now?")
        self.browser.click("#live-stop")
        self.assertEqual(run.ended(), 75, run.said)
        self.browser.wait_for("document.getElementById('live-state').innerText.startsWith('stopped')")
        self.assertEqual(self.browser.evaluate("violations"), [])
        again = subprocess.run([str(word) for word in train(MARKUP, "--max-steps", "2", "--json")], capture_output=True, text=True)
        self.assertEqual(again.returncode, 0, again.stderr)
        stopped = json.loads(again.stdout)
        self.assertEqual(stopped["steps"], 2)
        self.assertGreater(stopped["step"], 2)

        # Its page without the process that trained it.
        page = Process([ENGINE, "report", root / MARKUP, "--page", "0"])
        self.browser.open(f"http://127.0.0.1:{page.port}/")
        self.browser.wait_for("document.getElementById('live-state').innerText === 'not training'")
        self.assertTrue(self.browser.evaluate("document.getElementById('live-stop').hidden"))
        self.assertEqual(page.ask("POST", "/stop", "{}", Content_Type="application/json")[0], 409)
        self.assertEqual(page.interrupt(), 0)

    def test_nobody_else_reads_or_stops_it(self):
        run = Process(train("guarded", "--page", "0"))
        json_type = {"Content_Type": "application/json"}
        for status, request in ((421, ("GET", "/", None, {"Host": "evil.example"})),
                                (403, ("POST", "/stop", "{}", {"Origin": "http://evil.example", **json_type})),
                                (403, ("POST", "/stop", "{}", {"Origin": "null", **json_type})),
                                (415, ("POST", "/stop", "a=b", {"Content_Type": "application/x-www-form-urlencoded"})),
                                (415, ("POST", "/stop", None, {})),
                                (405, ("GET", "/stop", None, {})),
                                (405, ("DELETE", "/state", None, {})),
                                (405, ("POST", "/", "{}", json_type)),
                                (413, ("POST", "/stop", " " * 10000, json_type)),
                                (404, ("GET", "/metrics.jsonl", None, {})),
                                (404, ("GET", "/../plan.json", None, {})),
                                (404, ("GET", "/%2e%2e/%2e%2e/etc/passwd", None, {})),
                                (404, ("GET", "/state/..", None, {}))):
            method, path, body, headers = request
            self.assertEqual(run.ask(method, path, body, **headers)[0], status, request)
        while "loss" not in (page := run.ask("GET", "/")[1]):
            self.assertIn("<html", page)
        self.assertTrue(json.loads(run.ask("GET", "/state")[1])["is_running"])
        self.assertEqual(run.interrupt(), 75)

        page = Process([ENGINE, "report", root / "guarded", "--page", "127.0.0.1:0"], {"FVLM_PAGE_PASSWORD": "sesame: open"})
        for status, authorization in ((401, None), (401, "Basic x"), (401, "Bearer sesame: open"),
                                      (401, "Basic " + base64.b64encode(b"me:sesame").decode()),
                                      (200, "Basic " + base64.b64encode(b"me:sesame: open").decode())):
            headers = {"Authorization": authorization} if authorization else {}
            self.assertEqual(page.ask("GET", "/state", **headers)[0], status, authorization)
        self.assertEqual(page.interrupt(), 0)
        for where, why in (("0.0.0.0:0", "could read the run and stop it"), ("70000", "expected [ADDRESS:]PORT"),
                           ("::1", "expected [ADDRESS:]PORT"), ("x", "expected [ADDRESS:]PORT")):
            refused = subprocess.run([ENGINE, "report", root / "guarded", "--page", where], capture_output=True, text=True)
            self.assertEqual(refused.returncode, 2)
            self.assertIn(why, refused.stderr, where)

    def test_tables_of_a_run_fit_the_page(self):
        subprocess.run([MAKE_RUN, root / "synthetic"], check=True)
        subprocess.run([ENGINE, "report", root / "synthetic"], check=True, capture_output=True)
        self.browser.size(1280, 900)
        self.browser.open(f"file://{root / 'synthetic' / 'report.html'}")
        widths = self.browser.evaluate("[...document.querySelectorAll('.wide')].map(one => [one.scrollWidth, one.clientWidth])")
        self.assertGreater(len(widths), 3)
        self.assertEqual([wide for wide in widths if wide[0] > wide[1]], [], "they scroll sideways")

    def test_runs_are_compared(self):
        for run, rate in (("slow", "1e-4"), ("fast", "1e-3")):
            subprocess.run([str(word) for word in train(run, "--max-steps", "30", "--set", f"stages.align.optimizer.lr.connector={rate}")],
                           check=True, capture_output=True)
        made = subprocess.run([ENGINE, "report", root / "slow", root / "fast", "--out", root / "both.html", "--json"],
                              capture_output=True, text=True)
        self.assertEqual(made.returncode, 0, made.stderr)
        document = json.loads(made.stdout)
        self.assertEqual(document["runs"], ["slow", "fast"])
        self.assertEqual([one["path"] for one in document["differences"]], ["stages.align.optimizer.lr.connector"])
        self.browser.size(1280, 900)
        self.browser.open(f"file://{root / 'both.html'}")
        self.assertEqual(self.text("section h2"), "What the plans differ in")
        self.assertIn("stages.align.optimizer.lr.connector", self.text("#plan"))
        self.assertEqual(self.browser.evaluate("""[...document.querySelectorAll('.chart')].filter(one =>
            one.innerText.includes('Loss, align') && one.querySelectorAll('.key').length === 2).length"""), 1)
        self.picture("compared")
        self.browser.size(390, 844)
        self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth"), 390)
        self.assertEqual(self.browser.evaluate("violations"), [])


unittest.main(argv=sys.argv[:1])
