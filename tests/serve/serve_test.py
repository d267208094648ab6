"""`fvlm-engine serve` as clients see it: answers beside those of `generate`, streams, many at once, clients that leave,
and requests that are wrong.

usage: serve_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import base64
import concurrent.futures
import json
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import time
import unittest
from pathlib import Path

import forked_program
from against_oracle import engine, folder, tool
from running_server import JSON, Server, WithServer, data_url, events, picture, user, with_image

TOKEN = "correct horse"


def generated(*options):
    command = [engine, "generate", folder / "gqa", "--json", *options]
    done = forked_program.run(command)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def setUpModule():
    tool("make-tiny", "model", "gqa", folder / "gqa", "--seed", "1")
    (folder / "picture.png").write_bytes(picture())


class Answers(WithServer, unittest.TestCase):
    def test_are_those_of_generate(self):
        options = ["--max-tokens", 8, "--image-size", 28]
        self.assertEqual(self.server.ask(user("What is this?")), generated("--prompt", "What is this?", *options)["text"])
        asked = generated("--prompt", "And this?", "--image", folder / "picture.png", *options)["text"]
        self.assertEqual(self.server.ask(with_image("And this?", picture())), asked)
        self.assertNotEqual(asked, self.server.ask(user("And this?")), "the picture made no difference")
        system = [{"role": "system", "content": "Be brief."}, user("What is this?")]
        self.assertEqual(self.server.ask(*system), generated("--prompt", "What is this?", "--system", "Be brief.", *options)["text"])
        drawn = generated("--prompt", "What is this?", "--temperature", 1, "--seed", 7, *options)["text"]
        self.assertEqual(self.server.ask(user("What is this?"), temperature=1, seed=7), drawn)

    def test_of_many_clients_are_those_of_each_alone(self):
        questions = [user("cat " * (i % 7 + 1)) if i % 3 else with_image("mat " * (i % 5 + 1), picture(step=i + 2)) for i in range(24)]
        limits = [i % 11 + 1 for i in range(24)]
        alone = [self.server.ask(question, max_tokens=limit) for question, limit in zip(questions, limits)]
        with concurrent.futures.ThreadPoolExecutor(24) as clients:
            together = list(clients.map(lambda i: self.server.ask(questions[i], max_tokens=limits[i]), range(24)))
        self.assertEqual(together, alone)

    def test_stream_piece_by_piece(self):
        request = {"messages": [user("What is this?")], "temperature": 0, "max_tokens": 12}
        whole = json.loads(self.server.send("/v1/chat/completions", request)[1])
        status, body, response = self.server.send("/v1/chat/completions",
                                                  request | {"stream": True, "stream_options": {"include_usage": True}})
        self.assertEqual((status, response.getheader("Content-Type")), (200, "text/event-stream; charset=utf-8"))
        documents, ended = events(body)
        self.assertTrue(ended)
        choices = [document["choices"][0] for document in documents if document["choices"]]
        self.assertEqual("".join(choice["delta"].get("content", "") for choice in choices), whole["choices"][0]["message"]["content"])
        self.assertEqual([choice["delta"].get("role") for choice in choices], ["assistant"] + [None] * (len(choices) - 1))
        self.assertEqual(choices[-1]["finish_reason"], whole["choices"][0]["finish_reason"])
        self.assertEqual(documents[-1]["usage"], whole["usage"])
        self.assertEqual(whole["usage"]["total_tokens"], sum(whole["usage"][name] for name in ("prompt_tokens", "completion_tokens")))

    def test_of_one_request_differ_where_they_are_drawn(self):
        request = {"messages": [user("What is this?")], "n": 3, "max_tokens": 10, "seed": 3, "temperature": 1.5}
        answers = [choice["message"]["content"] for choice in json.loads(self.server.send("/v1/chat/completions", request)[1])["choices"]]
        self.assertEqual(len(set(answers)), 3, answers)
        again = [choice["message"]["content"] for choice in json.loads(self.server.send("/v1/chat/completions", request)[1])["choices"]]
        self.assertEqual(answers, again)
        unseeded = {"temperature": 1.5, "max_tokens": 20}
        self.assertNotEqual(self.server.ask(user("Hi"), **unseeded), self.server.ask(user("Hi"), **unseeded))

    def test_end_at_a_stop_text(self):
        whole = self.server.ask(user("Describe this."), max_tokens=20, temperature=1, seed=1)
        stop = next(letter for letter in whole[len(whole) // 2:] if letter.isascii() and letter.isprintable())
        cut = self.server.ask(user("Describe this."), max_tokens=20, temperature=1, seed=1, stop=[stop, "nobody says this"])
        self.assertEqual(cut, whole[: whole.index(stop)])

    def test_continue_a_text(self):
        status, text, _ = self.server.send("/v1/completions", {"prompt": "The cat sat", "max_tokens": 6, "temperature": 0})
        self.assertEqual(status, 200, text)
        document = json.loads(text)
        self.assertEqual(document["object"], "text_completion")
        self.assertEqual(document["usage"]["completion_tokens"], 6)

    def test_other_routes(self):
        self.assertEqual(self.server.send("/health")[:2], (200, '{"status":"ok"}'))
        models = json.loads(self.server.send("/v1/models")[1])
        longest = json.loads((folder / "gqa" / "decoder" / "config.json").read_text())["max_position_embeddings"]
        self.assertEqual([(model["id"], model["max_model_len"]) for model in models["data"]], [("gqa", longest)])
        before = self.server.metrics()
        self.server.ask(user("Count this."), max_tokens=5)
        after = self.server.metrics()
        self.assertEqual(after["requests_answered_total"] - before["requests_answered_total"], 1)
        self.assertLessEqual(after["generated_tokens_total"] - before["generated_tokens_total"], 5)
        self.assertEqual((after["requests_waiting"], after["requests_running"]), (0, 0))

    def test_turns_that_begin_alike_share_what_was_computed(self):
        turns = [user("Tell me what a cat does all day, and then what a dog does all night, with every detail.")]
        before = self.server.metrics()
        usages = []
        for turn in range(3):
            status, text, _ = self.server.send("/v1/chat/completions", {"messages": turns, "temperature": 0, "max_tokens": 9})
            self.assertEqual(status, 200, text)
            usages.append(json.loads(text)["usage"])
            if turn > 0:  # the first time asked again, then continued
                turns += [{"role": "assistant", "content": "Both sleep."}, user("And then?")]
        prompt, cached = ([usage["prompt_tokens"] for usage in usages],
                          [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages])
        self.assertGreaterEqual(cached[1], prompt[1] - 16)
        self.assertGreaterEqual(cached[2], prompt[1] - 32)
        self.assertTrue(all(some < rows for some, rows in zip(cached, prompt)), (cached, prompt))
        shared = self.server.metrics()["cache_shared_tokens_total"] - before["cache_shared_tokens_total"]
        self.assertEqual(shared, sum(cached))

    def test_answers_to_one_request_take_nothing_up_from_before(self):
        text = "Say which of all birds are black, and which are white, and where each of them lives."
        cached = []
        for _ in range(2):
            status, body, _ = self.server.send("/v1/chat/completions", {"messages": [user(text)], "n": 3, "max_tokens": 2})
            self.assertEqual(status, 200, body)
            cached.append(json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"])
        self.assertLess(cached[0], 64, "of its text")
        self.assertGreaterEqual(cached[1], 64)

    def test_temperatures_near_0_take_the_likeliest_token(self):
        likeliest = self.server.ask(user("Hi"))
        for fields in ({}, {"top_p": 0.9}):
            self.assertEqual(self.server.ask(user("Hi"), temperature=1e-310, **fields), likeliest)

    def test_base64_in_lines(self):
        plain = with_image("What is this?", picture())
        lines = json.loads(json.dumps(plain))
        code = base64.encodebytes(picture()).decode()
        self.assertIn("\n", code.strip())
        lines["content"][0]["image_url"]["url"] = "data:image/png;base64," + code.replace("\n", "\r\n")
        self.assertEqual(self.server.ask(lines), self.server.ask(plain))

    def test_biases_of_many_tokens_go_with_a_form(self):
        bias = {str(token): -1 for token in range(300)} | {str(token): 0 for token in range(300, 1024)}
        status, text, _ = self.server.send("/v1/chat/completions", {"messages": [user("Hi")], "response_format": {"type": "json_object"}, "logit_bias": bias})
        self.assertIn("expected tokens of the model's 300", text)
        self.assertEqual(status, 400)

    def test_one_connection_carries_many_requests(self):
        connection = self.server.connection()
        for _ in range(3):
            connection.request("POST", "/v1/chat/completions", json.dumps({"messages": [user("Hi")], "max_tokens": 2}), JSON)
            response = connection.getresponse()
            self.assertEqual(response.status, 200)
            response.read()
        connection.close()


class Trouble(unittest.TestCase):
    def test_wrong_requests_are_refused_with_their_reason(self):
        chat = "/v1/chat/completions"
        asked = {"messages": [user("Hi")]}
        def part(url):
            return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
        cases = [
            (400, "parse error", chat, "{"), (400, "no JSON object", chat, "[]"), (400, "parse error", chat, b"\xff\xfe"),
            (400, "expected a list of messages", chat, {}), (400, "expected a list of messages", chat, {"messages": []}),
            (400, "role is system, user, assistant or tool, not 'wizard'", chat, {"messages": [{"role": "wizard", "content": "x"}]}),
            (400, "messages[0]: it has no content", chat, {"messages": [{"role": "user"}]}),
            (400, "temperature: expected a number", chat, asked | {"temperature": "hot"}),
            (400, "temperature: expected a number", chat, asked | {"temperature": -1}),
            (400, "max_tokens: expected a whole number", chat, asked | {"max_tokens": 0}),
            (400, "max_tokens", chat, asked | {"max_tokens": 1 << 62}), (400, "n: expected", chat, asked | {"n": 1000}),
            (400, "top_p", chat, asked | {"top_p": 0}), (400, "stop", chat, asked | {"stop": [""]}),
            (400, "stream: expected true or false", chat, asked | {"stream": "yes"}),
            *((400, f"{name}: this server does not support it", chat, asked | {name: value}) for name, value in
              {"functions": [{}], "function_call": "f", "bad_words": ["no"], "ebnf": "root ::= \"a\"",
               "modalities": ["text", "audio"]}.items()),
            *((400, f"{name}: ", chat, asked | {name: "auto"}) for name in ("suffix", "response_format", "logit_bias")),
            *((400, "logit_bias: expected ids of tokens", chat, asked | {"logit_bias": {key: 1}}) for key in ("the", "", "9" * 20)),
            *((400, f"{name}: a request has at most 1048576 bytes of it", chat, asked | {name: value}) for name, value in
              {"tools": [{"type": "function", "function": {"name": "f", "description": "x" * (1 << 20)}}],
               "chat_template_kwargs": {"x": "x" * (1 << 20)}}.items()),
            (400, "logit_bias.5: ", chat, asked | {"logit_bias": {"5": 101}}),
            (400, "logit_bias: expected tokens of the model's", chat, asked | {"logit_bias": {"99999999": 1}}),
            (400, "presence_penalty: ", chat, asked | {"presence_penalty": 2.5}), (400, "frequency_penalty: ", chat, asked | {"frequency_penalty": "high"}),
            (400, "tools[0]: tools are of type function", chat, asked | {"tools": [{}]}), (400, "the request has no tools", chat, asked | {"tool_choice": "required"}),
            (400, "tools: this server does not support it", "/v1/completions", {"prompt": "Hi", "tools": [{}]}),
            (400, "top_logprobs: it goes with", chat, asked | {"top_logprobs": 2}),
            (400, "fetches nothing", chat, part("http://127.0.0.1/x.png")), (400, "fetches nothing", chat, part("file:///etc/passwd")),
            (400, "fetches nothing", chat, part("/etc/passwd")), (400, "with base64", chat, part("data:image/png,abc")),
            (400, "not valid base64", chat, part("data:image/png;base64,$$$")),
            (400, "not an image", chat, part(data_url(b"<svg onload=alert(1)>", "image/svg+xml"))),
            (400, "image 0", chat, part(data_url(picture()[:60]))),
            (400, "a BMP file: expected JPEG", chat, part(data_url(b"BM" + bytes(60), "image/bmp"))),
            (400, "has its words in", chat, {"messages": [{"role": "user", "content": [{"type": "text", "content": "Hi"}]}]}),
            (400, "expected n, which is 1, got 3", chat, asked | {"best_of": 3}),
            (400, "expected tokens", "/v1/completions", {"prompt": [1, "Ho"]}),
            (404, "has the model 'gqa'", "/v1/models/gpt", None), (404, "has the model 'gqa'", "/v1/models/gqa%", None),
            (400, "maximum context length", chat, {"messages": [user("cat " * 5000)]}),
            (404, "has the model 'gqa'", chat, asked | {"model": "gpt"}),
            (404, "no such path", "/v1/../etc/passwd", None), (404, "no such path", "/chat", None), (405, "takes GET", "/", {}),
            (400, "attention: expected true or false", chat, asked | {"attention": 1}),
            (405, "takes POST", chat, None), (405, "takes GET", "/v1/models", {}), (400, "prompt: expected", "/v1/completions", {"prompt": 3}),
        ]
        with Server() as server:
            for status, words, path, body in cases:
                with self.subTest(words=words, path=path):
                    got, text, _ = server.send(path, body, raw=not isinstance(body, dict))
                    self.assertEqual(got, status, text)
                    self.assertIn(words, json.loads(text)["error"]["message"])
            self.assertTrue(server.ask(user("Still there?")) is not None)
            self.assertEqual(server.stop(), 0)

    def test_fields_that_ask_for_nothing_change_nothing(self):
        """Clients that name every field, and those that write a prompt as a list."""
        usual = {"response_format": {"type": "text"}, "tools": [], "logit_bias": {}, "suffix": "", "echo": False, "best_of": 1, "temperature": 0, "top_k": -1, "tool_choice": "auto", "function_call": "none", "min_tokens": 0, "ignore_eos": False, "modalities": ["text"],
                 "chat_template_kwargs": {}, "metadata": {"a": "b"}, "user": "me"}
        with Server() as server:
            plain = server.ask(user("Hi"), temperature=0)
            self.assertEqual(server.ask(user("Hi"), **usual), plain)
            prompts = [json.loads(server.send("/v1/completions", {"prompt": prompt, "max_tokens": 8} | usual)[1])["choices"][0]["text"]
                       for prompt in ("Hi", ["Hi"])]
            self.assertEqual(prompts[0], prompts[1])

    def test_biases_and_penalties_change_which_tokens_are_likely(self):
        """Greedily, between two tokens that are far likelier than all others: a penalty makes them take turns."""
        first, second = 40, 41
        with Server() as server:
            def text(**fields):
                asked = {"prompt": "Hi", "max_tokens": 6, "temperature": 0, "ignore_eos": True, "logit_bias": {str(first): 100}} | fields
                return json.loads(server.send("/v1/completions", asked)[1])["choices"][0]["text"]
            def spelled(*tokens):
                return json.loads(server.send("/detokenize", {"tokens": tokens})[1])["prompt"]
            self.assertEqual(text(), spelled(*[first] * 6))
            self.assertEqual(text(logit_bias={str(second): 100}), spelled(*[second] * 6))
            both = text(logit_bias={str(first): 100, str(second): 100})
            alone = first if both == spelled(*[first] * 6) else second
            self.assertEqual(both, spelled(*[alone] * 6))
            turns = text(logit_bias={str(first): 100, str(second): 100}, frequency_penalty=2)
            self.assertEqual(set(turns), set(spelled(first, second)))

    def test_what_is_no_request_is_refused_and_holds_nothing_up(self):
        with Server("--body-limit", 1) as server:
            for sent, status in ((b"garbage\r\n\r\n", b" 400 "), (b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", b" 431 "),
                                 (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b" 413 "),
                                 (b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b" 400 "),
                                 (b"GET /health HTTP/1.0\r\n\r\n", b" 200 ")):
                with socket.create_connection(("127.0.0.1", server.port), timeout=1800) as client:
                    client.sendall(sent)
                    client.shutdown(socket.SHUT_WR)
                    answer = b""
                    while piece := client.recv(65536):
                        answer += piece
                    self.assertIn(status, answer[:20], sent[:60])
            large = b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1048576\r\n\r\n"
            held = [socket.create_connection(("127.0.0.1", server.port), timeout=1800) for _ in range(513)]
            for client in held:
                client.sendall(large)
            turned_away = select.select(held, [], [], 60)[0]
            self.assertEqual(len(turned_away), 1, "all bodies together have a limit")
            self.assertIn(b" 503 ", turned_away[0].recv(100)[:20])
            for client in held:
                client.close()
            idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
            for client in idle:
                client.sendall(b"POST /v1/chat/comp")
            server.ask(user("Hello?"))
            for client in idle:
                client.close()

    def test_a_request_in_chunks_takes_no_more_room_than_it_has(self):
        with Server("--image-size", 28, "--body-limit", 512) as server:
            body = json.dumps({"messages": [user("Hi")], "n": 8, "ignore_eos": True, "stream": True}).encode()
            with socket.create_connection(("127.0.0.1", server.port), timeout=1800) as client:
                client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                               b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
                self.assertIn(b" 200 ", client.recv(65536))
                server.ask(user("Hello?"), max_tokens=1) # beside it

    def test_a_request_may_want_what_one_gets_that_says_nothing(self):
        with Server("--image-size", 28, "--max-tokens", 5000) as server:
            server.ask(user("Hello?"), max_tokens=5000, stop_token_ids=list(range(3, 259)))
            limits = json.loads(server.send("/v1/models")[1])["data"][0]["fvlm"]
            self.assertEqual((limits["usual_tokens"], limits["max_tokens"]), (5000, 5000))

    def test_head_is_get_without_the_body(self):
        with Server() as server:
            client = server.connection()
            for path in ("/health", "/v1/models", "/nothing"):
                client.request("HEAD", path)
                head = client.getresponse()
                self.assertEqual(head.read(), b"")
                client.auto_open = False # a second connection would hide a body that this one takes for an answer
                client.request("GET", path)
                whole = client.getresponse()
                self.assertEqual(len(whole.read()), int(head.getheader("Content-Length")))
                self.assertEqual((whole.status, whole.getheader("Content-Type")), (head.status, head.getheader("Content-Type")))
            client.close()

    def test_time_to_send_a_request_begins_with_the_request(self):
        with Server("--idle", 3) as server:
            client = server.connection()
            client.request("GET", "/health")
            client.getresponse().read()
            client.auto_open = False
            time.sleep(2)
            body = json.dumps({"messages": [user("Hi")], "max_tokens": 2}).encode()
            client.putrequest("POST", "/v1/chat/completions")
            client.putheader("Content-Type", "application/json")
            client.putheader("Content-Length", str(len(body)))
            client.endheaders()
            time.sleep(2) # with the pause before longer than --idle
            client.send(body)
            self.assertEqual(client.getresponse().status, 200)
            client.close()

    def test_a_client_is_not_late_while_the_server_is(self):
        with Server("--idle", 1) as server:
            began = time.monotonic()
            clients = [server.connection() for _ in range(8)]
            for client in clients:
                client.request("GET", "/health")
                client.getresponse().read()
                client.auto_open = False # a second connection would hide that the first was closed
            server.process.send_signal(signal.SIGSTOP)
            if time.monotonic() - began > 0.5: # on a busy machine it may have closed some already
                server.process.send_signal(signal.SIGCONT)
                return self.test_a_client_is_not_late_while_the_server_is()
            request = json.dumps({"messages": [user("Hi")], "temperature": 0, "max_tokens": 2, "user": "x" * 30_000})
            for client in clients:
                client.request("POST", "/v1/chat/completions", request, JSON)
            time.sleep(1.5) # longer than --idle
            server.process.send_signal(signal.SIGCONT)
            for client in clients:
                self.assertEqual(client.getresponse().status, 200)
                client.close()

    def test_large_requests_hold_up_no_small_ones(self):
        with Server() as server:
            large = b'{"messages": [' + b"[]," * (10 << 20) + b"{}]}"
            for _ in range(10): # until one is seen while it is read
                with concurrent.futures.ThreadPoolExecutor(1) as client:
                    answer = client.submit(server.send, "/v1/chat/completions", large, raw=True)
                    was_seen = False
                    while not answer.done() and not was_seen:
                        was_seen = server.metrics()["requests_waiting"] > 0
                    self.assertEqual(answer.result()[0], 400)
                if was_seen:
                    return
            self.fail("no other request was answered while a large one was read")

    def test_clients_that_leave_free_their_place(self):
        with Server("--queue", 3) as server:
            request = json.dumps({"messages": [user("Tell a story.")], "max_tokens": 200, "stream": True, "seed": 1})
            left = [server.connection() for _ in range(3)]
            for connection in left:
                connection.request("POST", "/v1/chat/completions", request, JSON)
                connection.getresponse().read(10)
            for connection in left:
                connection.sock.shutdown(socket.SHUT_RDWR)
                connection.close()
            server.wait_for(requests_running=0, requests_waiting=0)
            after = server.metrics()
            self.assertGreater(after["cache_pages"], 0)
            self.assertEqual(after["cache_pages_free"] + after["cache_pages_cached"], after["cache_pages"])
            self.assertTrue(server.ask(user("Next!")) is not None)

    def test_too_many_requests_are_turned_away(self):
        with Server("--queue", 2) as server:
            request = {"messages": [user("Tell a story.")], "max_tokens": 150}
            statuses = []
            with concurrent.futures.ThreadPoolExecutor(16) as clients:
                while 429 not in statuses and len(statuses) < 320: # a busy machine may send them one after the other
                    statuses += clients.map(lambda _: server.send("/v1/chat/completions", request)[0], range(16))
            self.assertEqual(set(statuses), {200, 429})

    def test_a_token_is_asked_for(self):
        (folder / "token").write_text(TOKEN + "\n")
        with Server("--token-file", folder / "token") as server:
            request = {"messages": [user("Hi")], "max_tokens": 2}
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "}, {"Authorization": TOKEN},
                            {"Authorization": f"Bearer {TOKEN}x"}):
                status, text, response = server.send("/v1/chat/completions", request, headers=headers)
                self.assertEqual((status, response.getheader("WWW-Authenticate")), (401, "Bearer"), text)
            self.assertEqual(server.send("/metrics")[0], 401)
            self.assertEqual(server.send("/health")[0], 200)
            self.assertEqual(server.send("/v1/chat/completions", request, headers={"Authorization": f"Bearer {TOKEN}"})[0], 200)

    def test_the_end_waits_for_answers_that_have_begun(self):
        with Server() as server:
            connection = server.connection()
            connection.request("POST", "/v1/chat/completions",
                               json.dumps({"messages": [user("Tell a story.")], "max_tokens": 120, "stream": True, "seed": 1}), JSON)
            response = connection.getresponse()
            first = response.read(10)
            server.process.send_signal(signal.SIGTERM)
            documents, ended = events((first + response.read()).decode())
            self.assertTrue(ended)
            self.assertIn(documents[-1]["choices"][0]["finish_reason"], ("stop", "length"))
            self.assertEqual(server.process.wait(timeout=1800), 0)
            with self.assertRaises(OSError):
                server.send("/health")

    def test_the_end_does_not_wait_for_ever(self):
        with Server("--grace", 1) as server:
            asked = [server.connection() for _ in range(4)]
            for connection in asked:
                connection.request("POST", "/v1/chat/completions",
                                   json.dumps({"messages": [user("Tell a story.")], "max_tokens": 4096, "n": 8, "stream": True,
                                               "temperature": 5}), JSON)
                connection.getresponse().read(10)
            self.assertEqual(server.stop(), 0, server.log)

    def test_a_killed_server_starts_again_and_answers_the_same(self):
        with Server("--image-size", 28) as server:
            expected = [server.ask(user("What is this?")), server.ask(with_image("And this?", picture()))]
            connection = server.connection()
            connection.request("POST", "/v1/chat/completions",
                               json.dumps({"messages": [user("Tell a story.")], "max_tokens": 4096, "n": 8, "stream": True,
                                           "temperature": 5}), JSON)
            connection.getresponse().read(10) # the answer has begun
            port = server.port
            self.assertEqual(server.stop(signal.SIGKILL), -signal.SIGKILL)
            with Server("--image-size", 28, "--port", port) as again: # the old connection holds the port no longer
                self.assertEqual(again.port, port)
                self.assertEqual(again.send("/health")[:2], (200, '{"status":"ok"}'))
                self.assertEqual([again.ask(user("What is this?")), again.ask(with_image("And this?", picture()))], expected)
            connection.close()

    def test_a_request_beyond_the_memory_for_keys_and_values_alone_fails(self):
        roomy = folder / "roomy" # whose positions take more than there is
        shutil.copytree(folder / "gqa", roomy)
        config = roomy / "decoder" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 1 << 20}))
        mebibyte, rows = 1 << 20, 64
        with Server("--image-size", 28, "--cache-rows", rows, model="roomy") as server:
            question, long = user("What is this?"), user("a" * 200)
            expected = server.ask(question)
            answer = server.ask(long) # the cache grows where there is memory
            before = server.metrics()
            self.assertGreater(before["cache_pages"] * 16, rows)
            row_bytes = before["cache_bytes"] / before["cache_pages"] / 16
            prompt = "a" * min(1_000_000, int(640 * mebibyte / row_bytes))
            self.assertGreater(len(prompt) * row_bytes, 256 * mebibyte, "more than what is left to the server")
            size = int(re.search(r"VmSize:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())[1]) * 1024
            resource.prlimit(server.process.pid, resource.RLIMIT_AS, (size + 192 * mebibyte, resource.RLIM_INFINITY))
            with concurrent.futures.ThreadPoolExecutor(4) as clients:
                others = [clients.submit(server.ask, question, max_tokens=60) for _ in range(3)]
                status, text, _ = server.send("/v1/chat/completions", {"messages": [user(prompt)], "max_tokens": 1})
                self.assertEqual(len({other.result() for other in others}), 1)
            error = json.loads(text)["error"]
            self.assertEqual(status, 503, text)
            self.assertIn("the server's memory does not hold the keys and values of this request", error["message"])
            self.assertIn("a shorter prompt", error["message"])
            _, body, response = server.send("/v1/chat/completions", {"messages": [user(prompt)], "max_tokens": 1, "stream": True})
            self.assertEqual((response.status, json.loads(body)["error"]["message"]), (503, error["message"]), "a stream has not begun")
            self.assertEqual([server.ask(question), server.ask(long)], [expected, answer])
            after = server.metrics()
            self.assertEqual(after["requests_failed_total"] - before["requests_failed_total"], 2)
            self.assertEqual((after["requests_running"], after["requests_waiting"], after["cache_pages"]), (0, 0, before["cache_pages"]))
            self.assertEqual(after["cache_pages_free"] + after["cache_pages_cached"], after["cache_pages"])

    def test_wrong_options_are_refused(self):
        for code, words, options in ((2, "is no IP address", ["--host", "everywhere"]), (2, "is no port", ["--port", 70000]),
                                     (2, "--queue: expected 1 or more", ["--queue", 0]), (4, "nothing", ["--token-file", folder / "nothing"]),
                                     (5, "nowhere: no plugin of this name", ["--kernels", "nowhere"]),
                                     (6, "a smaller --cache-rows", ["--cache-rows", 1 << 42])):
            command = [engine, "serve", folder / "gqa", *options]
            result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=1800)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(words, result.stderr)
        tool("make-tiny", "model", "bytes-latents", folder / "bytes", "--seed", "1")
        bytes_model = subprocess.run([str(word) for word in (engine, "serve", folder / "bytes")], capture_output=True, text=True, timeout=1800)
        self.assertEqual(bytes_model.returncode, 4)
        self.assertIn("generate --context", bytes_model.stderr)
        with Server() as server:
            second = subprocess.run([str(word) for word in (engine, "serve", folder / "gqa", "--port", server.port)],
                                    capture_output=True, text=True, timeout=1800)
            self.assertEqual(second.returncode, 7, second.stderr)
            self.assertIn("port 0 stands for any free one", second.stderr)


if __name__ == "__main__":
    unittest.main()
