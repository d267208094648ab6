"""What the tests of `fvlm-engine serve` share: a server that runs, and what is sent to it."""
import base64
import http.client
import json
import os
import re
import signal
import subprocess
import time
import zlib

from against_oracle import engine, folder


JSON = {"Content-Type": "application/json"}


def picture(size=28, step=9, height=None):
    """A PNG of grey steps, a square unless its height is given."""
    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
    head = size.to_bytes(4, "big") + (height or size).to_bytes(4, "big") + b"\x08\x00\x00\x00\x00"
    rows = b"".join(b"\x00" + bytes((x * step + y) % 256 for x in range(size)) for y in range(height or size))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def data_url(file, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(file).decode()}"


def with_image(text, file):
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(file)}}, {"type": "text", "text": text}]}


def make_endless(model):
    """Lets the model's answers go on to their most tokens, so that there is time to stop them."""
    config = folder / model / "decoder" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 8192}))
    (folder / model / "decoder" / "generation_config.json").write_text('{"eos_token_id": []}')


class Server:
    def __init__(self, *options, model="gqa", environment=None):
        command = [engine, "serve", folder / model, *([] if "--port" in options else ["--port", 0]), *options]
        self.process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True, env=os.environ | (environment or {}))
        self.log = ""
        while not (found := re.search(r"http://[^ ]*:(\d+)/v1", self.log)):
            line = self.process.stderr.readline()
            assert line, f"it ended: {self.log}"
            self.log += line
        self.port = int(found[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        self.log += self.process.communicate(timeout=1800)[1]
        return self.process.returncode

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=1800)

    def send(self, path, body=None, method=None, headers=None, raw=False):
        connection = self.connection()
        data = body if raw or body is None else json.dumps(body)
        given = {} if body is None else JSON
        connection.request(method or ("GET" if body is None else "POST"), path, data, given | (headers or {}))
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text, response

    def ask(self, *messages, **fields):
        """The text of a chat's first answer. Greedy unless the fields say otherwise."""
        request = {"messages": list(messages), "temperature": 0, "max_tokens": 8} | fields
        status, text, _ = self.send("/v1/chat/completions", request)
        assert status == 200, text
        return json.loads(text)["choices"][0]["message"]["content"]

    def metrics(self):
        lines = [line.split() for line in self.send("/metrics")[1].splitlines() if not line.startswith("#")]
        return {name.removeprefix("fvlm_"): float(value) for name, value in lines}

    def wait_for(self, **metrics):
        for _ in range(36_000):
            now = self.metrics()
            if all(now[name] == value for name, value in metrics.items()):
                return
            time.sleep(0.05)
        raise AssertionError(f"expected {metrics}, the metrics are {now}")


class WithServer:
    """Mixed into a TestCase: a server."""
    options = ("--image-size", 28)
    model = "gqa"

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.options, model=cls.model)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.log


class WithOpenAi(WithServer):
    """And a client of it by the package openai."""

    @classmethod
    def setUpClass(cls):
        import openai
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key="none", max_retries=0, timeout=1800)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        super().tearDownClass()


def user(text):
    return {"role": "user", "content": text}


def events(body):
    """The documents of a stream of events, and whether it ended properly."""
    parts = [part.removeprefix("data: ") for part in body.split("\n\n") if part]
    return [json.loads(part) for part in parts if part != "[DONE]"], parts[-1] == "[DONE]"
