"""The chat page of `fvlm-engine serve` in a real browser: answers that are streamed, stopped, retried and edited, pictures
and the veil over what the model did not look at, keys, texts that look like HTML, and the choice among adapters.

usage: serve_browser_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels or Chromium are missing. With
FVLM_SCREENSHOTS=DIR it also writes pictures of the page."""
import base64
import json
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

from browser import Browser, find_chromium

if not find_chromium():
    print("Skipped\nthere is no Chromium: ./scripts/setup --oracles\n")
    sys.exit(77)

from against_oracle import engine, folder, save_file, tool, torch
from byte_tokenizer import tokenizer
from running_server import Server, make_endless, picture

TOKEN = "correct horse"
UNLABELLED = """[...document.querySelectorAll('button, input, select, textarea, img, canvas')].filter(one => !one.closest('[hidden]')
    && one.tagName !== 'CANVAS' && !(one.textContent.trim() && one.tagName === 'BUTTON') && !one.labels?.length
    && !one.getAttribute('aria-label') && !one.alt).map(one => one.outerHTML)"""


def setUpModule():
    tool("make-tiny", "model", "gqa", folder / "gqa", "--seed", "1")
    make_endless("gqa")
    (folder / "picture.png").write_bytes(picture(size=56))
    (folder / "other.png").write_bytes(picture(size=56, step=3))


def make_adapter(name, seed):
    """A folder as PEFT writes it, which changes what the model says."""
    config = json.loads((folder / "gqa" / "decoder" / "config.json").read_text())
    width, rank = config["hidden_size"], 4
    inner = config["num_attention_heads"] * config.get("head_dim", width // config["num_attention_heads"])
    torch.manual_seed(seed)
    (folder / name).mkdir()
    (folder / name / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": ["q_proj"]}))
    layers = [f"base_model.model.model.layers.{layer}.self_attn.q_proj" for layer in range(config["num_hidden_layers"])]
    save_file({f"{layer}.lora_{matrix}.weight": torch.randn(shape) for layer in layers for matrix, shape in (("A", (rank, width)), ("B", (inner, rank)))},
              folder / name / "adapter_model.safetensors")


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--image-size", 28)
        cls.browser = Browser(folder / "profile")
        cls.browser.call("Page.addScriptToEvaluateOnNewDocument", source="""window.violations = [];
            addEventListener("securitypolicyviolation", event => violations.push(event.effectiveDirective))""")

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        assert cls.server.stop() == 0, cls.server.log

    def setUp(self):
        self.browser.size(1280, 800)
        self.open(self.server)

    def tearDown(self):
        self.assertEqual(self.value("violations"), [])

    def open(self, server):
        self.browser.open(f"http://127.0.0.1:{server.port}/")
        self.browser.evaluate("localStorage.clear(); sessionStorage.clear()")
        self.browser.open(f"http://127.0.0.1:{server.port}/")

    def value(self, expression):
        return self.browser.evaluate(expression)

    def set(self, name, value):
        self.value(f"document.getElementById({json.dumps(name)}).value = {json.dumps(str(value))}")

    def write(self, text):
        self.value("document.getElementById('text').focus()")
        self.browser.type(text)

    def ask(self, text):
        self.write(text)
        self.browser.press("Enter", text="\r")

    def answered(self, answers):
        self.browser.wait_for(f"document.querySelectorAll('article.assistant').length === {answers} && running === null")

    def words(self):
        return self.value("[...document.querySelectorAll('article .words')].map(words => words.textContent)")

    def screenshot(self, name):
        if where := os.environ.get("FVLM_SCREENSHOTS"):
            data = self.browser.call("Page.captureScreenshot", format="png")["data"]
            (Path(where) / f"{name}.png").write_bytes(base64.b64decode(data))

    def reply_with(self, *pieces):
        """Lets the next question be answered with these pieces, texts or deltas, in place of the model's. What it returns tells the request."""
        self.browser.call("Fetch.enable", patterns=[{"urlPattern": "*/v1/chat/completions"}])
        def event(choices, **more):
            return "data: " + json.dumps({"choices": choices} | more) + "\n\n"
        deltas = [piece if isinstance(piece, dict) else {"content": piece} for piece in pieces]
        body = "".join(event([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas)
        body += event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        body += event([], usage={"prompt_tokens": 3, "completion_tokens": len(pieces)}) + "data: [DONE]\n\n"
        def reply():
            paused = self.browser.next_event("Fetch.requestPaused")
            self.browser.call("Fetch.fulfillRequest", requestId=paused["requestId"], responseCode=200,
                              responseHeaders=[{"name": "Content-Type", "value": "text/event-stream"}],
                              body=base64.b64encode(body.encode()).decode())
            self.browser.call("Fetch.disable")
            return json.loads(paused["request"]["postData"])
        return reply

    def test_shows_the_answer_that_the_server_gives(self):
        self.set("temperature", 0)
        self.set("max_tokens", 12)
        self.browser.wait_for("model.id === 'gqa'")
        self.ask("What is this?")
        self.answered(1)
        self.assertEqual(self.words(), ["What is this?", self.server.ask({"role": "user", "content": "What is this?"}, max_tokens=12)])
        self.assertEqual(self.value("[document.getElementById('answering-label').hidden, document.querySelectorAll('.by').length, models.length]"),
                         [True, 0, 1], "there is nothing to choose")
        self.assertEqual(self.value("[document.getElementById('model').className, document.getElementById('model').textContent]"), ["", "gqa"])
        about = self.value("document.querySelector('article.assistant .about').textContent")
        self.assertRegex(about, r"^\d+ tokens in [\d.]+ s · [\d.]+ tokens/s · prompt \d+")
        self.assertEqual(self.value("document.activeElement.id"), "text")
        messages = [{"role": "user", "content": "What is this?"}, {"role": "assistant", "content": self.words()[1]},
                    {"role": "user", "content": "And why?"}]
        self.ask("And why?")
        self.answered(2)
        self.assertEqual(self.words()[3], self.server.ask(*messages, max_tokens=12), "the conversation goes along")

    def test_folds_thoughts(self):
        hostile = "<b>Add</b> <script>window.hit = 2</script>"
        reply = self.reply_with({"role": "assistant", "content": None, "reasoning_content": hostile}, {"reasoning_content": " them."}, "Four.")
        self.ask("Two and two?")
        reply()
        self.answered(1)
        self.assertEqual(self.words()[1:], [hostile + " them.", "Four."])
        self.assertRegex(self.value("document.querySelector('.thoughts summary').textContent"), r"^Thought for \d+\.\d s$")
        self.assertEqual(self.value("[document.querySelectorAll('.thoughts b, .thoughts script').length, window.hit ?? 0]"), [0, 0])
        self.assertFalse(self.value("document.querySelector('.thoughts').open"))
        self.value("document.querySelector('.thoughts summary').focus()")
        self.browser.press("Enter", text="\r")
        self.browser.wait_for("document.querySelector('.thoughts').open")
        self.browser.size(400, 800)
        self.assertLessEqual(self.value("document.documentElement.scrollWidth"), 400)
        self.screenshot("thoughts-400")
        reply = self.reply_with({"reasoning_content": "Still"})
        self.ask("And more?")
        sent = reply()["messages"]
        self.assertEqual(sent[1], {"role": "assistant", "content": "Four.", "reasoning_content": hostile + " them."})
        self.answered(2)
        self.assertEqual(self.value("turns.at(-1).text"), "", "thoughts that were cut off are no answer")

    def test_lets_models_think_that_can(self):
        self.browser.wait_for("model.id === 'gqa'")
        self.assertEqual(self.value("[document.getElementById('think-label').hidden, 'chat_template_kwargs' in requestBody()]"), [True, False])
        self.value("model.fvlm.thinking = {variable: 'enable_thinking', default: true}")
        self.assertEqual(self.value("requestBody().chat_template_kwargs"), {"enable_thinking": True})
        self.browser.click("#think")
        self.assertEqual(self.value("requestBody().chat_template_kwargs"), {"enable_thinking": False})
        self.assertFalse(self.value("JSON.parse(localStorage.getItem('settings')).think"))
        self.browser.open(f"http://127.0.0.1:{self.server.port}/")
        self.assertFalse(self.value("document.getElementById('think').checked"), "it is kept")

    def choose(self, name):
        self.value(f"""(() => {{
            const choice = document.getElementById('answering');
            choice.value = {json.dumps(name)};
            choice.dispatchEvent(new Event('change', {{bubbles: true}}));
        }})()""")

    def test_lets_an_adapter_answer(self):
        question = {"role": "user", "content": "What is this?"}
        hostile = "<b>charts"
        for seed, name in enumerate(("invoices", hostile)):
            make_adapter(f"adapter-{seed}", seed)
        with Server("--image-size", 28, "--adapter", f"invoices={folder / 'adapter-0'}", "--adapter", f"{hostile}={folder / 'adapter-1'}") as server:
            expected = {name: server.ask(question, max_tokens=12, model=name) for name in ("gqa", "invoices", hostile)}
            self.assertEqual(len(set(expected.values())), 3, expected)
            self.open(server)
            self.browser.wait_for("models.length === 3")
            self.assertEqual(self.value("[...document.getElementById('answering').options].map(option => option.textContent)"), list(expected))
            self.assertEqual(self.value("[model.id, document.getElementById('answering').value]"), ["gqa", "gqa"])
            self.set("temperature", 0)
            self.set("max_tokens", 12)
            self.ask(question["content"])
            self.answered(1)
            self.assertEqual(self.words()[1], expected["gqa"])
            for name in ("invoices", hostile):
                self.choose(name)
                self.assertEqual(self.value("document.querySelector('article.assistant .by').textContent"), "gqa" if name == "invoices" else "invoices")
                self.browser.click("article.assistant .change")
                self.answered(1)
                self.assertEqual(self.words()[1], expected[name], name)
                self.assertRegex(self.value("document.querySelector('article.assistant .about').textContent"), f"^{name}\\d+ tokens in")
                self.assertEqual(self.value("document.title"), f"{name}: chat")
            self.assertEqual(self.value("document.querySelectorAll('header b, article b').length"), 0)
            self.choose("invoices")
            self.ask("And why?")
            self.answered(2)
            self.assertEqual(self.value("[...document.querySelectorAll('.by')].map(by => by.textContent)"), [hostile, "invoices"])
            self.screenshot("adapters-1280")
            for width in (400, 320):
                self.browser.size(width, 700)
                self.assertLessEqual(self.value("document.documentElement.scrollWidth"), width)
            self.screenshot("adapters-320")
            self.assertEqual(self.value(UNLABELLED), [])
            self.browser.open(f"http://127.0.0.1:{server.port}/")
            self.browser.wait_for("models.length === 3")
            self.assertEqual(self.value("[model.id, document.getElementById('answering').value]"), ["invoices", "invoices"], "it is kept")
            self.assertEqual(self.value("requestBody().model"), "invoices")
            self.value("localStorage.setItem('settings', JSON.stringify({model: 'gone'}))")
            self.browser.open(f"http://127.0.0.1:{server.port}/")
            self.browser.wait_for("models.length === 3")
            self.assertEqual(self.value("model.id"), "gqa", "as of an adapter that is no longer served")

    def test_sends_a_picture_and_veils_where_the_model_did_not_look(self):
        self.set("temperature", 0)
        self.set("max_tokens", 8)
        self.browser.wait_for("model.fvlm.attention")
        self.browser.attach("#files", folder / "picture.png", folder / "other.png")
        self.browser.wait_for("document.querySelectorAll('#attached img').length === 2")
        self.ask("And this?")
        self.answered(1)
        self.assertEqual(self.value("document.querySelectorAll('article.user img').length"), 2)
        self.assertEqual(self.value("document.querySelectorAll('.glances li').length"), 2)
        shades = self.value("""[...document.querySelectorAll('.glances canvas')].map(canvas =>
            [canvas.width, canvas.height, ...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data])""")
        alphas = [shade[2:][3::4] for shade in shades]
        self.assertEqual([shade[:2] for shade in shades], [[4, 4], [4, 4]])
        self.assertEqual(min(min(alpha) for alpha in alphas), 0, "no veil where it looked most")
        self.assertGreater(max(max(alpha) for alpha in alphas), 0, alphas)
        self.browser.wait_for("[...document.querySelectorAll('.glances img')].every(image => image.naturalWidth === 28)")
        content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode()}}
                   for file in (folder / "picture.png", folder / "other.png")]
        expected = self.server.ask({"role": "user", "content": content + [{"type": "text", "text": "And this?"}]}, max_tokens=8)
        self.assertEqual(self.words()[1], expected)
        self.screenshot("picture-1280")
        self.browser.size(400, 800, dark=True)
        self.screenshot("picture-400-dark")

    def test_a_very_wide_picture_does_not_fill_the_row_of_attached_ones(self):
        (folder / "wide.png").write_bytes(picture(size=8000, height=3))
        for width in (1280, 400):
            self.browser.size(width, 800)
            self.browser.attach("#files", folder / "wide.png", folder / "picture.png")
            self.browser.wait_for("[...document.querySelectorAll('#attached img')].filter(image => image.naturalWidth).length >= 2")
            self.assertLessEqual(self.value("document.querySelector('#attached img').getBoundingClientRect().width"), 200)
            self.assertEqual(self.value("document.getElementById('attached').scrollWidth - document.getElementById('attached').clientWidth"), 0)
            self.open(self.server)

    def test_takes_pictures_that_are_dropped_and_pasted(self):
        self.browser.wait_for("model.id === 'gqa'")
        self.set("temperature", 0)
        self.set("max_tokens", 8)
        def transfer(name, file):
            """A DataTransfer as the browser makes it of a file."""
            data = base64.b64encode((folder / file).read_bytes()).decode()
            return f"""(() => {{
                const bytes = Uint8Array.from(atob("{data}"), letter => letter.charCodeAt(0)), transfer = new DataTransfer();
                transfer.items.add(new File([bytes], "{name}", {{type: "image/png"}}));
                return transfer;
            }})()"""
        def send(event, carrier):
            """Whether the page lets the browser do what it usually does, which is to open the file."""
            return self.value(f"document.getElementById('text').dispatchEvent(new {event}, {{bubbles: true, cancelable: true, {carrier}}}))")
        over = transfer("dropped.png", "picture.png")
        self.assertFalse(send("DragEvent('dragover'", f"dataTransfer: {over}"))
        self.assertTrue(self.value("document.body.classList.contains('drop')"))
        send("DragEvent('dragleave'", f"dataTransfer: {over}")
        self.assertFalse(self.value("document.body.classList.contains('drop')"))
        send("DragEvent('dragover'", f"dataTransfer: {over}")
        self.assertFalse(send("DragEvent('drop'", f"dataTransfer: {over}"))
        self.browser.wait_for("attached.length === 1")
        self.assertEqual(self.value("[attached[0].name, document.body.classList.contains('drop')]"), ["dropped.png", False])
        self.assertFalse(send("ClipboardEvent('paste'", f"clipboardData: {transfer('pasted.png', 'other.png')}"))
        self.browser.wait_for("attached.length === 2")
        self.assertEqual(self.value("[...document.querySelectorAll('#attached img')].map(image => image.alt)"), ["dropped.png", "pasted.png"])
        text = "(() => { const transfer = new DataTransfer(); transfer.setData('text/plain', 'words'); return transfer; })()"
        self.assertTrue(send("ClipboardEvent('paste'", f"clipboardData: {text}"), "text is the browser's to paste")
        self.assertEqual(self.value("attached.length"), 2)
        self.ask("And these?")
        self.answered(1)
        content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode()}}
                   for file in (folder / "picture.png", folder / "other.png")]
        expected = self.server.ask({"role": "user", "content": content + [{"type": "text", "text": "And these?"}]}, max_tokens=8)
        self.assertEqual(self.words()[1], expected)

    def attach_clip(self):
        self.value("""(async () => { // records three colours of half a second each
            const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
            [canvas.width, canvas.height] = [64, 48];
            pen.fillStyle = "#f00"; // before the recorder may take an empty frame
            pen.fillRect(0, 0, 64, 48);
            const recorder = new MediaRecorder(canvas.captureStream(20), {mimeType: "video/webm"}), parts = [];
            recorder.ondataavailable = event => parts.push(event.data);
            const stopped = new Promise(resolve => { recorder.onstop = resolve; });
            recorder.start();
            for (let step = 0; step < 30; ++step) {
              pen.fillStyle = ["#f00", "#0f0", "#00f"][Math.floor(step / 10)];
              pen.fillRect(0, 0, 64, 48);
              await new Promise(resolve => setTimeout(resolve, 50));
            }
            recorder.stop();
            await stopped;
            await attach([new File(parts, "clip.webm", {type: "video/webm"})]);
        })()""")

    def test_draws_the_frames_of_a_video(self):
        self.browser.wait_for("model.id === 'gqa'")
        self.attach_clip()
        self.assertEqual(self.value("[document.getElementById('status').textContent, attached.length >= 2]"), ["", True])
        self.assertEqual(self.value("attached[0].name"), f"clip.webm, frame 1 of {self.value('attached.length')}")
        colours = self.value("""Promise.all(attached.map(async picture => {
            const image = new Image();
            image.src = picture.url;
            await image.decode();
            const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
            pen.drawImage(image, 0, 0);
            return [image.naturalWidth, image.naturalHeight, ...[...pen.getImageData(20, 20, 1, 1).data.slice(0, 3)].map(value => value > 120 ? 1 : 0)];
        }))""")
        self.assertEqual([colours[0][:2], colours[0][2:]], [[64, 48], [1, 0, 0]], colours)
        self.assertNotEqual(colours[-1][2:], [1, 0, 0], "another frame")
        self.set("max_tokens", 3)
        self.ask("Which colour came first?")
        self.answered(1)
        self.assertEqual(self.value("document.querySelectorAll('article.error').length"), 0)
        self.assertEqual(self.value("document.querySelectorAll('.glances li').length"), len(colours))

    def test_takes_as_many_frames_of_a_video_as_the_model_was_trained_with(self):
        trained = folder / "trained"
        shutil.copytree(folder / "gqa", trained)
        recipe = Path(__file__).parents[2] / "recipes" / "quickstart.lua"
        command = [engine, "plan", recipe, "--json", "--set", "stages.align.data.max_frames=1"]
        (trained / "plan.json").write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
        (trained / "stage.json").write_text('{"stage": "align"}')
        with Server("--image-size", 28, model="trained") as server:
            self.assertEqual(json.loads(server.send("/v1/models")[1])["data"][0]["fvlm"]["video_frames"], 1)
            self.open(server)
            self.browser.wait_for("document.getElementById('video_frames').placeholder === '1'")
            self.attach_clip()
            self.assertEqual(self.value("attached.length"), 1, "longer than a second")
            self.set("video_frames", 2)
            self.attach_clip()
            self.assertEqual(self.value("attached.length"), 3)
            self.value("model.fvlm.video_frames = 0")
            self.attach_clip()
            self.assertEqual(self.value("attached.length"), 3, "as of a model that reads no videos")
        with Server("--image-size", 28, "--frames", 99, model="trained") as server:
            limits = json.loads(server.send("/v1/models")[1])["data"][0]["fvlm"]
            self.assertEqual((limits["video_frames"], limits["max_images"]), (99, 99))

    def test_sends_a_video_as_one_part_where_the_model_reads_it_so(self):
        (folder / "words").mkdir()
        words = json.loads(tokenizer())
        for part in ("pre_tokenizer", "decoder"): # as the package tokenizers, which adds tokens to it, wants them
            words[part] |= {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        (folder / "words" / "tokenizer.json").write_text(json.dumps(words))
        tool("make-qwen2-vl", folder / "qwen3-vl", "--tokenizer", folder / "words", "--family", "qwen3_vl")
        subprocess.run([engine, "import", "--model", folder / "qwen3-vl", "--out", folder / "qwen"], check=True, capture_output=True)
        with Server(model="qwen") as server:
            self.open(server)
            self.browser.wait_for("model.fvlm.video_part")
            self.attach_clip()
            frames = self.value("attached.length")
            self.assertGreaterEqual(frames, 2)
            self.browser.attach("#files", folder / "picture.png")
            self.browser.wait_for("document.getElementById('status').textContent.includes('one video')")
            self.assertEqual(self.value("attached.length"), frames)
            self.value("document.querySelector('#attached button').click()")
            self.assertEqual(self.value("attached.length"), 0, "its frames go together")
            self.attach_clip()
            self.set("max_tokens", 3)
            self.ask("Which colour came first?")
            self.answered(1)
            self.assertEqual(self.value("document.querySelectorAll('article.error').length"), 0, self.words())
            part = self.value("requestBody().messages[0].content[0]")
            self.assertEqual([part["type"], len(part["video"]), part["fps"]], ["video", frames, 1])
            self.screenshot("video-part-1280")

    def test_stops_an_answer_by_escape_and_retries_it(self):
        before = self.server.metrics()["requests_abandoned_total"]
        self.set("temperature", 0)
        self.set("max_tokens", 4096)
        self.ask("Tell a story.")
        self.browser.wait_for("document.querySelector('article.assistant .words')?.textContent.length > 3")
        self.screenshot("streaming-1280")
        self.browser.press("Escape")
        self.answered(1)
        self.assertIn("stopped", self.value("document.querySelector('article.assistant .about').textContent"))
        self.server.wait_for(requests_running=0, requests_abandoned_total=before + 1)
        self.set("max_tokens", 5)
        self.browser.click("article.assistant .change")
        self.answered(1)
        self.assertRegex(self.value("document.querySelector('article.assistant .about').textContent"), r"^[1-5] tokens")

    def test_edits_the_last_message_and_starts_anew(self):
        self.set("max_tokens", 3)
        self.browser.attach("#files", folder / "picture.png")
        self.browser.wait_for("attached.length === 1")
        self.ask("What is thiss?")
        self.answered(1)
        self.browser.press("ArrowUp")
        self.assertEqual(self.value("[document.getElementById('text').value, turns.length, attached.length]"), ["What is thiss?", 0, 1])
        self.set("text", "")
        self.write("line")
        self.browser.press("Enter", text="\r", modifiers=8)
        self.assertEqual(self.value("[document.getElementById('text').value, turns.length]"), ["line\n", 0])
        self.browser.press("Enter", text="\r")
        self.answered(1)
        self.assertEqual(self.words()[0], "line")
        self.browser.click("#new")
        self.assertEqual(self.value("[turns.length, document.querySelectorAll('article').length]"), [0, 0])

    def test_shows_html_as_text(self):
        hostile = ["<img src=x onerror=\"window.hit = 1\">", "<script>window.hit = 1</script>", "</div><b>bold</b>", "&lt;i&gt; ${1} \u202e"]
        reply = self.reply_with(*hostile)
        self.ask("<u>me</u> <script>window.hit = 1</script>")
        reply()
        self.answered(1)
        self.assertEqual(self.words(), ["<u>me</u> <script>window.hit = 1</script>", "".join(hostile)])
        self.assertEqual(self.value("document.querySelectorAll('article img, article script, article b, article u').length"), 0)
        self.assertIsNone(self.value("window.hit"))

    def test_runs_no_script_but_its_own_and_reaches_no_other_server(self):
        self.value("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hit = 1'}))")
        self.assertIsNone(self.value("window.hit"))
        self.assertEqual(self.value("fetch('http://localhost:9/').then(() => 'sent', error => error.name)"), "TypeError")
        self.browser.wait_for("violations.length >= 2")
        self.assertEqual(self.value("violations.splice(0)"), ["script-src-elem", "connect-src"])

    def test_says_what_the_server_refuses(self):
        self.ask("cat " * 5000)
        self.answered(1)
        self.assertIn("maximum context length", self.words()[1])
        self.assertEqual(self.value("document.querySelectorAll('article.error').length"), 1)
        self.set("max_tokens", 3)
        self.ask("A cat")
        self.browser.wait_for("document.querySelectorAll('article.error').length === 0 && running === null")

    def test_asks_for_the_token(self):
        (folder / "token").write_text(TOKEN + "\n")
        with Server("--image-size", 28, "--token-file", folder / "token") as server:
            self.open(server)
            self.browser.wait_for("document.activeElement.id === 'token'")
            self.browser.type(TOKEN)
            self.value("document.getElementById('token').dispatchEvent(new Event('change', {bubbles: true}))")
            self.browser.wait_for("model.id === 'gqa'")
            self.set("max_tokens", 3)
            self.ask("Hi")
            self.answered(1)
            self.assertEqual(self.value("document.querySelectorAll('article.error').length"), 0)

    def test_is_labelled_and_fits_a_phone(self):
        self.browser.click("#settings-button")
        self.screenshot("settings-1280")
        self.assertEqual(self.value(UNLABELLED), [])
        for width in (400, 320):
            self.browser.size(width, 700)
            self.assertLessEqual(self.value("document.documentElement.scrollWidth"), width)
            self.assertTrue(self.value("document.getElementById('send').getBoundingClientRect().bottom <= innerHeight"))
        self.browser.size(400, 800)
        self.screenshot("settings-400")
        self.browser.click("#settings-button")
        self.screenshot("empty-400")


if __name__ == "__main__":
    unittest.main()
