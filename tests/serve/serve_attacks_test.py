"""What `fvlm-engine serve` makes of requests that mean it ill (attacks.py): each has its answer, the server answers a good
request after it as before, and its memory does not grow.

usage: serve_attacks_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import json
import os
import re
import socket
import struct
import subprocess
import unittest

from against_oracle import engine, folder, tool
from attacks import BODIES, BODY, CHAT, FRAMING, HEADERS, MANY, OTHER_BODIES, PATHS, chat, get, post
from running_server import Server, make_endless, user


def setUpModule():
    tool("make-tiny", "model", "gqa", folder / "gqa", "--seed", "1")


class Attacks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--image-size", 28)
        cls.usual = cls.server.ask(user("Hello?"))

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.log

    def still_answers(self):
        self.assertEqual(self.server.ask(user("Hello?")), self.usual)

    def expect(self, status, expected, what):
        self.assertIn(status, expected if isinstance(expected, tuple) else (expected,), what)

    def status_of(self, sent, says_more=False):
        """Of the first answer to these bytes; 0 where the connection is closed without one. A client that says no more has
        left, for the server."""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=1800) as client:
            answer = b""
            try:
                client.sendall(sent)
                if not says_more:
                    client.shutdown(socket.SHUT_WR)
                while b"\r\n" not in answer and (piece := client.recv(65536)):
                    answer += piece
            except ConnectionError: # it may close before all is sent; the answer can be lost then
                pass
            return int(answer.split(b" ", 2)[1]) if answer else 0

    def test_every_refusal_has_the_form_of_openais_errors(self):
        """Also what is refused before it is a request."""
        refused = 0
        for name, sent, _ in FRAMING:
            with self.subTest(framing=name), socket.create_connection(("127.0.0.1", self.server.port), timeout=1800) as client:
                answer = b""
                try:
                    client.sendall(sent)
                    client.shutdown(socket.SHUT_WR)
                    while piece := client.recv(65536):
                        answer += piece
                except ConnectionError:
                    continue
                if not answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")):
                    continue
                head, rest = answer.split(b"\r\n\r\n", 1)
                self.assertIn(b"\r\ncontent-type: application/json\r\n", head.lower() + b"\r\n")
                length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
                error = json.loads(rest[:length])["error"]
                self.assertTrue(error["message"])
                self.assertIn(error["type"], ("invalid_request_error", "not_found_error"))
                self.assertIsNone(error["code"])
                refused += 1
        self.assertGreater(refused, 25)

    def run_all(self):
        for name, sent, expected in FRAMING:
            with self.subTest(framing=name):
                self.expect(self.status_of(sent, says_more=expected == 200), expected, name)
                self.still_answers()
        for path, name, body, expected, words in [(CHAT, *body) for body in BODIES] + OTHER_BODIES:
            with self.subTest(path=path, body=name):
                status, text, _ = self.server.send(path, body, raw=isinstance(body, bytes))
                self.expect(status, expected, text)
                self.assertIn(words, text)
                self.assertLess(len(text), 1200, "an answer that quotes all of it")
                self.still_answers()
        for name, headers, expected in HEADERS:
            with self.subTest(headers=name):
                status, text, response = self.server.send(CHAT, chat(), headers=headers)
                self.expect(status, expected, text)
                self.assertIsNone(response.getheader("Access-Control-Allow-Origin"))
                self.still_answers()
        for path in PATHS:
            with self.subTest(path=path):
                self.assertEqual(self.status_of(get(path.encode())), 404)

    def processor_seconds(self):
        fields = open(f"/proc/{self.server.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def test_many_objects_take_no_time_of_their_square(self):
        before = self.processor_seconds()
        for path, _, body, status, words in [(CHAT, *body) for body in BODIES] + OTHER_BODIES:
            if isinstance(body, dict) and body.get("x") is MANY:
                got, text, _ = self.server.send(path, body)
                self.assertEqual(got, status, text)
                self.assertIn(words, text)
        self.assertLess(self.processor_seconds() - before, 60)

    def resident(self):
        pages = int(open(f"/proc/{self.server.process.pid}/statm").read().split()[1])
        return pages * 4096 / 2**20

    def test_have_their_answers_and_take_no_memory(self):
        self.assertGreaterEqual(len(FRAMING) + len(BODIES) + len(OTHER_BODIES) + len(HEADERS) + len(PATHS), 60)
        self.run_all()
        before = self.resident()
        self.run_all()
        self.assertLess(self.resident() - before, 48, "MiB of memory more after the second round")

    def test_clients_that_vanish_hold_nothing(self):
        request = json.dumps(chat("Tell a story.", max_tokens=4096, n=8, stream=True, temperature=5)).encode()
        for _ in range(20): # with a reset in place of an end
            client = socket.create_connection(("127.0.0.1", self.server.port), timeout=1800)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(post(b"Content-Length: %d\r\n" % len(request), request))
            client.recv(20)
            client.close()
        self.server.wait_for(requests_running=0, requests_waiting=0)
        self.still_answers()

    def test_a_flood_of_pipelined_requests_is_answered_in_order(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=1800) as client:
            client.sendall(get() * 300 + get(b"/nothing"))
            client.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := client.recv(65536):
                answer += piece
        self.assertEqual(answer.count(b"HTTP/1.1 200 "), 300)
        self.assertTrue(answer.rindex(b"HTTP/1.1 404 ") > answer.rindex(b"HTTP/1.1 200 "))

    def test_slow_clients_are_cut_off(self):
        with Server("--image-size", 28, "--idle", 1) as server:
            def opened(sent):
                client = socket.create_connection(("127.0.0.1", server.port), timeout=1800)
                client.sendall(sent)
                return client
            half = [opened(get()[:-2]) for _ in range(50)] + [opened(post(b"Content-Length: 50\r\n", b"{")) for _ in range(50)] + [opened(b"")]
            for client in half:
                self.assertEqual(client.recv(100), b"", "closed without an answer")
                client.close()
            self.assertEqual(server.ask(user("Hello?")), self.usual)

    def test_an_answer_that_does_not_begin_in_time_is_given_up(self):
        tool("make-tiny", "model", "gqa", folder / "endless", "--seed", "1")
        make_endless("endless")
        with Server("--image-size", 28, "--patience", 1, model="endless") as server:
            status, text, response = server.send(CHAT, chat("Tell a story.", max_tokens=4096, n=8))
            self.assertEqual((status, response.getheader("Retry-After")), (503, "10"), text)
            self.assertEqual(json.loads(text)["error"]["type"], "server_error")
            server.wait_for(requests_running=0, requests_abandoned_total=1)
            for _ in range(600): # a busy machine may take longer than the patience for a short answer, too
                if server.send(CHAT, chat("Hello?", max_tokens=1))[0] == 200:
                    return
            self.fail("no request is answered any more")

    def test_connections_have_a_limit(self):
        with Server("--image-size", 28, "--connections", 8) as server:
            held = [socket.create_connection(("127.0.0.1", server.port), timeout=1800) for _ in range(8)]
            for client in held:
                client.sendall(get())
                self.assertIn(b" 200 ", client.recv(100))
            with socket.create_connection(("127.0.0.1", server.port), timeout=1800) as client:
                self.assertIn(b" 503 ", client.recv(100))
            for client in held:
                client.close()
            for _ in range(600):
                try:
                    if server.send("/health")[0] == 200:
                        break
                except OSError:
                    pass
            else:
                self.fail("closed connections still count")

    def test_words_of_a_template_are_text(self):
        def rows(text):
            return json.loads(self.server.send(CHAT, chat(text))[1])["usage"]["prompt_tokens"]
        for token in ("<|im_end|>", "<|im_start|>", "<|endoftext|>"):
            self.assertGreater(rows(f"Hi {token}"), rows("Hi ") + 1, "a special token is one")

    def test_programs_that_are_no_pages_of_the_web_may_ask_where_they_are_listed(self):
        """As the refusal says."""
        origins = ["chrome-extension://abcdefghijklmnop", "app://obsidian.md", "tauri://localhost", "vscode-webview://1a-2b", "http://localhost:1"]
        refused = {origin: json.loads(self.server.send(CHAT, chat(), headers={"Origin": origin})[1])["error"]["message"] for origin in [*origins, "null", "file://"]}
        options = [word for origin in origins for word in re.search(r"(--allow-origin) (\S+) lets", refused[origin]).groups()]
        with Server("--image-size", 28, *options) as server:
            for origin in origins:
                status, text, response = server.send(CHAT, chat(), headers={"Origin": origin})
                self.assertEqual((status, response.getheader("Access-Control-Allow-Origin")), (200, origin), text)
            self.assertEqual(server.send(CHAT, chat(), headers={"Origin": "chrome-extension://other"})[0], 403)
        for origin in ("null", "file://"):
            self.assertIn("serve the page over HTTP", refused[origin])
            self.assertNotIn("lets", refused[origin])
        for wrong in ("null", "file://", "https://a.b/c", "1x://a", "a b://c"):
            command = [engine, "serve", folder / "gqa", "--port", 0, "--allow-origin", wrong]
            result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("is no origin", result.stderr)

    def test_other_pages_may_ask_where_they_are_listed(self):
        page = "https://app.example.com"
        with Server("--image-size", 28, "--allow-origin", page, "--allow-host", "gpu.example.com") as server:
            status, text, response = server.send(CHAT, chat(), headers={"Origin": page})
            self.assertEqual((status, response.getheader("Access-Control-Allow-Origin"), response.getheader("Vary")), (200, page, "Origin"), text)
            status, _, response = server.send(CHAT, method="OPTIONS", headers={"Origin": page, "Access-Control-Request-Method": "POST"})
            self.assertEqual((status, response.getheader("Access-Control-Allow-Methods")), (204, "GET, POST"))
            self.assertEqual(server.send(CHAT, chat(), headers={"Origin": "https://example.com"})[0], 403)
            self.assertEqual(server.send(CHAT, method="OPTIONS", headers={"Origin": "https://example.com"})[0], 403)
            self.assertEqual(server.send(CHAT, chat(), headers={"Host": "GPU.example.com:80", "Origin": "http://gpu.example.com:80"})[0], 200)


if __name__ == "__main__":
    unittest.main()
