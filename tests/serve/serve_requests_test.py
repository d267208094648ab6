"""What requests to `fvlm-engine serve` may say and leave out: messages that end with any role, words that look like marks of pictures, the length of an
answer that nobody says, the date, large bodies; and the codes of errors.

usage: serve_requests_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import concurrent.futures
import json
import shutil
import socket
import time
import unittest

import forked_program
from against_oracle import engine, folder, tool
from running_server import Server, WithServer, make_endless, picture, user, with_image


def setUpModule():
    for name in ("gqa", "endless"):
        tool("make-tiny", "model", "gqa", folder / name, "--seed", "1")
    make_endless("endless")


def connection_to(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=1800)


class Requests(WithServer, unittest.TestCase):
    def written(self, *messages):
        """What the model reads."""
        tokens = json.loads(self.server.send("/tokenize", {"messages": list(messages)})[1])["tokens"]
        return json.loads(self.server.send("/detokenize", {"tokens": tokens})[1])["prompt"]

    def test_follow_whichever_message_is_the_last(self):
        system, said, asks = {"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "It is"}, "<|im_start|>assistant\n"
        self.assertEqual(self.written(system), "<|im_start|>system\nBe brief.<|im_end|>\n" + asks)
        self.assertEqual(self.written(said), self.written(user("x")).replace("user\nx", "assistant\nIt is"))
        self.assertTrue(self.written(user("What?"), said).endswith("user\nWhat?<|im_end|>\n<|im_start|>assistant\nIt is<|im_end|>\n" + asks))
        self.assertTrue(self.written(user("What?"), system).endswith("<|im_start|>system\nBe brief.<|im_end|>\n" + asks))
        for messages in ([system], [said], [user("What?"), said], [user("What?"), system]):
            status, text, _ = self.server.send("/v1/chat/completions", {"messages": messages, "max_tokens": 2})
            self.assertEqual(status, 200, text)

    def test_read_marks_of_pictures_as_words(self):
        spelled = "How is <video> written in HTML, and what is <image>?"
        self.assertIn(f"user\n{spelled}<|im_end|>", self.written(user(spelled)))
        def rows(message):
            status, text, _ = self.server.send("/v1/chat/completions", {"messages": [message], "max_tokens": 1})
            self.assertEqual(status, 200, text)
            return json.loads(text)["usage"]["prompt_tokens"]
        shown = rows(with_image(spelled, picture())) - rows(user(spelled))
        self.assertEqual(shown, rows(with_image("What?", picture())) - rows(user("What?")))
        self.assertGreater(shown, 0)
        continued = json.loads(self.server.send("/tokenize", {"prompt": spelled})[1])["tokens"]
        self.assertEqual(json.loads(self.server.send("/detokenize", {"tokens": continued})[1])["prompt"], spelled)

    def test_errors_have_openais_codes(self):
        long, too_long = "cat " * 5000, "context_length_exceeded"
        for code, field, path, body in ((too_long, "messages", "/v1/chat/completions", {"messages": [user(long)]}),
                                        (too_long, "prompt", "/v1/completions", {"prompt": long}),
                                        (too_long, "input", "/v1/responses", {"input": long}),
                                        (too_long, "input", "/v1/embeddings", {"input": long}),
                                        ("model_not_found", "model", "/v1/chat/completions", {"messages": [user("Hi")], "model": "gpt"}),
                                        ("model_not_found", "model", "/v1/models/gpt", None),
                                        (None, "messages", "/v1/chat/completions", {"messages": []})):
            error = json.loads(self.server.send(path, body)[1])["error"]
            self.assertEqual((error["code"], error["param"]), (code, field), path)
            if code == too_long:
                self.assertIn("maximum context length is 512 tokens", error["message"])
                self.assertIn("the answer may have 16 tokens besides" if field == "prompt" else "shorten it", error["message"])

    def test_texts_spell_special_tokens_and_messages_do_not(self):
        spelled = "<|im_start|>user\nHi<|im_end|>\n"
        def tokens(request):
            return json.loads(self.server.send("/tokenize", request)[1])["tokens"]
        begin, end = (tokens({"prompt": token}) for token in ("<|im_start|>", "<|im_end|>"))
        self.assertEqual((len(begin), len(end)), (1, 1))
        written = tokens({"prompt": spelled})
        self.assertEqual((written[0], written[-2]), (begin[0], end[0]))
        in_chat = tokens({"messages": [user(spelled)]})
        self.assertEqual(in_chat.count(begin[0]), tokens({"messages": [user("Hi")]}).count(begin[0]))
        asked = {"max_tokens": 1, "temperature": 0, "logprobs": 0, "echo": True}
        by_text, by_tokens = (json.loads(self.server.send("/v1/completions", {"prompt": prompt} | asked)[1])["choices"][0]["logprobs"]["token_logprobs"]
                              for prompt in (spelled, written))
        self.assertEqual(by_text, by_tokens)

    def test_texts_of_a_message_are_lines(self):
        parts = [{"type": "text", "text": text} for text in ("One.", "Two.")]
        self.assertEqual(self.written({"role": "user", "content": parts}), self.written(user("One.\nTwo.")))
        self.assertEqual(self.written({"role": "system", "content": parts}, user("Hi")), self.written({"role": "system", "content": "One.\nTwo."}, user("Hi")))

    def test_texts_have_16_tokens_unless_they_say_it(self):
        for fields, expected in (({}, 16), ({"min_tokens": 20}, 20), ({"max_tokens": 18}, 18)):
            answer = json.loads(self.server.send("/v1/completions", {"prompt": "It is", "ignore_eos": True} | fields)[1])
            self.assertEqual(answer["usage"]["completion_tokens"], expected)

    def test_what_other_servers_take_is_read_or_refused(self):
        choice = {"structured_outputs": {"json": None, "regex": None, "choice": ["yes", "no"], "grammar": None, "disable_any_whitespace": False}}
        schema = {"json_schema": {"enum": ["yes", "no"]}}
        for fields in (choice, schema):
            self.assertIn(self.server.ask(user("Well?"), max_tokens=16, **fields), ("yes", "no", '"yes"', '"no"'))
        everywhere = [{"structured_outputs": {"regex": "a", "choice": ["b"]}}, {"n_predict": 5}, {"repeat_penalty": 1.1}, {"mirostat": 2},
                      {"images": ["x"]}, {"image_data": [{"data": "x", "id": 1}]}, {"lora": [{"id": 0, "scale": 1}]}, {"extra_body": {"top_k": 1}},
                      {"enable_thinking": False}, {"web_search_options": {}}, {"stop_regex": "a"}, {"thinking_budget_tokens": 9}, {"reasoning_format": "none"}]
        asked = {"chat/completions": {"messages": [user("Hi")], "max_tokens": 1}, "completions": {"prompt": "Hi"}, "responses": {"input": "Hi", "max_output_tokens": 1}}
        of_one = {"chat/completions": [{"max_output_tokens": 3}, {"reasoning": {"effort": "low"}}, {"thinking": {"type": "disabled"}}, {"instructions": "Be brief."}],
                  "completions": [{"max_output_tokens": 3}], "responses": [{"reasoning_effort": "low"}, {"thinking": {"type": "disabled"}}]}
        nothing = {"n_predict": -1, "repeat_penalty": 1.0, "mirostat": 0, "top_n_sigma": -1.0, "dry_multiplier": 0.0, "thinking_budget_tokens": -1,
                   "reasoning_format": "auto", "lora": [], "enable_thinking": None, "structured_outputs": {"json": None, "regex": None, "disable_fallback": False}}
        for form, request in asked.items():
            for fields in everywhere + of_one[form]:
                status, text, _ = self.server.send(f"/v1/{form}", request | fields)
                self.assertEqual((status, json.loads(text)["error"]["param"]), (400, *fields))
            status, text, _ = self.server.send(f"/v1/{form}", request | nothing)
            self.assertEqual(status, 200, text)


class Settings(unittest.TestCase):
    def test_a_request_that_says_nothing_gets_what_the_cache_has_room_for(self):
        rows, least, positions = 704, 512, 8192
        with Server("--image-size", 28, "--cache-rows", rows, model="endless") as server:
            def answered(text, **fields):
                status, body, _ = server.send("/v1/chat/completions", {"messages": [user(text)]} | fields)
                self.assertEqual(status, 200, body)
                document = json.loads(body)
                self.assertEqual(document["choices"][0]["finish_reason"], "stop" if "stop_token_ids" in fields else "length")
                return document["usage"]
            usage = answered("Hi")
            self.assertEqual(usage["prompt_tokens"] + usage["completion_tokens"], rows)
            self.assertEqual(server.metrics()["cache_pages"] * 16, rows, "it has not grown")
            self.assertEqual(answered("a" * (rows - least))["completion_tokens"], least)
            answered("Hi", max_tokens=positions, stop_token_ids=list(range(3, 259)))
            status, text, _ = server.send("/v1/chat/completions", {"messages": [user("Hi")], "max_tokens": positions + 1})
            self.assertEqual(status, 400, text)
            limits = json.loads(server.send("/v1/models")[1])["data"][0]["fvlm"]
            self.assertEqual((limits["usual_tokens"], limits["max_tokens"]), (rows, positions))

    def test_a_model_without_a_chat_template_continues_texts(self):
        plain = folder / "plain"
        shutil.copytree(folder / "gqa", plain)
        path = plain / "decoder" / "tokenizer.json"
        path.write_text(path.read_text().replace("<|im_start|>", "<|start|>"))
        with Server("--image-size", 28, model="plain") as server:
            self.assertIn("the model has no chat template", server.log)
            self.assertEqual(server.send("/v1/completions", {"prompt": "It is", "max_tokens": 2})[0], 200)
            self.assertEqual(server.send("/v1/embeddings", {"input": "It is"})[0], 200)
            for path, request in (("/v1/chat/completions", {"messages": [user("Hi")]}), ("/tokenize", {"messages": [user("Hi")]}), ("/v1/responses", {"input": "Hi"})):
                status, text, _ = server.send(path, request)
                self.assertEqual(status, 400)
                self.assertIn("the model has no chat template", json.loads(text)["error"]["message"])
        for verb in (["chat"], ["generate", "--prompt", "Hi"]):
            result = forked_program.run([engine, verb[0], plain, *verb[1:], "--image-size", "28"])
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("the tokenizer has no special token '<|im_start|>'", result.stdout + result.stderr)

    def test_an_answer_that_may_outgrow_the_cache_holds_up_nobody(self):
        rows = 2048
        with Server("--image-size", 28, "--cache-rows", rows, model="endless") as server, concurrent.futures.ThreadPoolExecutor(2) as clients:
            def answered(text, tokens, **fields):
                status, body, _ = server.send("/v1/chat/completions", {"messages": [user(text)], "max_tokens": tokens} | fields)
                self.assertEqual(status, 200, body)
                return json.loads(body)["choices"][0]["message"]["content"], time.monotonic()
            drawn = {"temperature": 1, "seed": 7, "ignore_eos": True}
            long = clients.submit(answered, "Hi", rows - 100, **drawn)
            server.wait_for(requests_running=1)
            longer = clients.submit(answered, "You", 3 * rows // 2, **drawn)
            server.wait_for(requests_running=2)
            ended = answered("What?", 4)[1]
            self.assertLess(ended, long.result()[1], "behind both, and before either")
            text = longer.result()[0]
            grown = server.metrics()
            self.assertGreater(grown["cache_pages"] * 16, rows)
            self.assertGreater(grown["preemptions_total"], 0)
            self.assertEqual(text, answered("You", 3 * rows // 2, **drawn)[0], "with room for all of it")

    def test_texts_of_a_message_are_one_for_a_template_of_parts(self):
        shutil.copytree(folder / "gqa", folder / "parts")
        (folder / "parts" / "decoder" / "chat_template.jinja").write_text(
            "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}{% if part.type == 'image' %}<image>"
            "{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n")
        with Server("--image-size", 28, model="parts") as server:
            for texts in (("One.", "Two."), ("What is <im", "age> in HTML?"), ("<|im_", "end|>")):
                contents = [{"type": "text", "text": text} for text in texts], "".join(texts)
                answers = [server.send("/tokenize", {"messages": [user(content)]})[1] for content in contents]
                self.assertEqual(answers[0], answers[1], f"{texts}: what several spell together is text, too")

    def test_a_model_of_text_alone_refuses_pictures(self):
        forked_program.run([engine, "import", "--model", folder / "gqa" / "decoder", "--out", folder / "text"])
        with Server(model="text") as server:
            limits = json.loads(server.send("/v1/models")[1])["data"][0]["fvlm"]
            self.assertEqual((limits["max_images"], limits["video_frames"]), (0, 0))
            self.assertEqual(server.send("/v1/chat/completions", {"messages": [user("Hi")], "max_tokens": 2})[0], 200)
            status, text, _ = server.send("/v1/chat/completions", {"messages": [with_image("What?", picture())]})
            self.assertEqual((status, json.loads(text)["error"]["param"]), (400, "messages[0].content[0]"))
            self.assertIn("the model reads text alone", json.loads(text)["error"]["message"])

    def test_the_body_of_a_request_counts_until_it_is_read(self):
        mebibyte = 1 << 20
        with Server("--image-size", 28, "--body-limit", 512, model="endless") as server:
            body = json.dumps({"messages": [user("Hi")], "ignore_eos": True, "stream": True, "n": 8}).encode()
            body = body[:-1] + b', "user": "' + b"x" * (200 * mebibyte) + b'"}'
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
            with connection_to(server) as client, connection_to(server) as other:
                client.sendall(head % len(body) + b"\r\n" + body)
                self.assertIn(b" 200 ", client.recv(65536)) # its answer has begun, and goes on
                other.sendall(head % (400 * mebibyte) + b"Expect: 100-continue\r\n\r\n")
                self.assertIn(b" 100 ", other.recv(100))
                with connection_to(server) as third:
                    third.sendall(head % (400 * mebibyte) + b"\r\n")
                    refused = third.recv(65536)
                    self.assertIn(b" 503 ", refused)
                    self.assertIn(b"\r\nretry-after: ", refused.lower())

    def test_templates_know_the_date(self):
        dated = folder / "dated"
        shutil.copytree(folder / "gqa", dated)
        (dated / "decoder" / "chat_template.jinja").write_text(
            "It is {{ strftime_now('%Y-%m-%d') }}.{% for m in messages %}{{ '<|im_start|>' + m.role + ': ' + m.content + '<|im_end|>' }}{% endfor %}")
        with Server("--image-size", 28, model="dated") as server:
            before = time.strftime("%Y-%m-%d")
            tokens = json.loads(server.send("/tokenize", {"messages": [user("Hi")]})[1])["tokens"]
            text = json.loads(server.send("/detokenize", {"tokens": tokens})[1])["prompt"]
            self.assertIn(text, [f"It is {day}.<|im_start|>user: Hi<|im_end|>" for day in (before, time.strftime("%Y-%m-%d"))])
            # An embedding is the same every day: that of the date of training.
            of_training, of_today = (json.loads(server.send("/tokenize", {"prompt": f"It is {day}."})[1])["tokens"] for day in ("2024-07-26", before))
            vectors = [json.loads(server.send("/v1/embeddings", request)[1])["data"][0]["embedding"]
                       for request in ({"messages": [user("Hi")]}, {"input": of_training + tokens[len(of_today):]}, {"input": tokens})]
            self.assertLess(max(abs(a - b) for a, b in zip(vectors[0], vectors[1])), 1e-5)
            self.assertGreater(max(abs(a - b) for a, b in zip(vectors[0], vectors[2])), 1e-4)

    def test_a_token_in_the_environment_is_trimmed_as_that_of_a_file(self):
        token = "correct horse"
        with Server(environment={"FVLM_SERVE_TOKEN": f" {token}\n"}) as server:
            self.assertEqual(server.send("/metrics", headers={"Authorization": f"Bearer {token}"})[0], 200)
            self.assertEqual(server.send("/metrics")[0], 401)


class RecommendedSampling(unittest.TestCase):
    """What a request leaves open is as generation_config.json recommends: here always the likeliest token."""
    def answers(self, recommended, *options, **fields):
        """To seeds from 0 on."""
        shutil.rmtree(folder / "drawing", ignore_errors=True)
        shutil.copytree(folder / "gqa", folder / "drawing")
        (folder / "drawing" / "decoder" / "generation_config.json").write_text(json.dumps(recommended))
        with Server(*options, model="drawing") as server:
            self.assertEqual("generation_config.json recommends" in server.log, bool(recommended) and not options)
            asked = [{"prompt": "It is", "max_tokens": 12, "ignore_eos": True, "seed": seed} | fields for seed in range(4)]
            replies = [server.send("/v1/completions", body) for body in asked]
        self.assertEqual([status for status, *_ in replies], [200] * 4, replies)
        return {json.loads(text)["choices"][0]["text"] for _, text, _ in replies}

    def test_takes_the_place_of_the_usual_one(self):
        greedy = self.answers({}, temperature=0)
        self.assertEqual(len(greedy), 1)
        recommended = {"do_sample": True, "temperature": 2.0, "top_k": 1, "top_p": None}
        self.assertEqual(self.answers(recommended), greedy)
        self.assertGreater(len(self.answers(recommended, top_k=-1)), 1)  # by the request
        self.assertGreater(len(self.answers(recommended, "--plain-sampling")), 1)
        self.assertGreater(len(self.answers({})), 1)


if __name__ == "__main__":
    unittest.main()
