"""`fvlm-engine serve` asked as programs ask it that are not installed here: benchmark clients, chat interfaces and pages of other origins, by the same
requests, with the fields that only they send.

usage: serve_clients_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels are missing."""
import json
import shutil
import unittest

import forked_program
from against_oracle import engine, folder, tokenizers, tool
from running_server import Server, WithServer, data_url, events, picture, user

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
QUESTION = "What is this?"
THINKING = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}\
{{ '<|im_start|>assistant\n' }}{% if enable_thinking is defined and not enable_thinking %}{{ '(' + mood + ')' }}{% endif %}"""


def run(*words):
    return forked_program.run((engine, *words))


def setUpModule():
    """A model that ends its answer to QUESTION with the third token, and what it says where nothing ends it."""
    global free
    tool("make-tiny", "model", "gqa", folder / "gqa", "--seed", "1")
    shutil.copytree(folder / "gqa", folder / "thinking")
    (folder / "thinking" / "decoder" / "chat_template.jinja").write_text(THINKING)
    free = json.loads(run("generate", folder / "gqa", "--json", "--prompt", QUESTION, "--max-tokens", 12, "--image-size", 28).stdout)
    assert free["ids"][2] not in free["ids"][:2] and len(free["ids"]) == 12, free
    (folder / "gqa" / "decoder" / "generation_config.json").write_text(json.dumps({"eos_token_id": free["ids"][2]}))


class Asked(WithServer, unittest.TestCase):
    def chat(self, *messages, status=200, path=CHAT, **fields):
        request = {"messages": list(messages or [user(QUESTION)])} if path == CHAT else {}
        got, text, _ = self.server.send(path, request | {"temperature": 0, "max_tokens": 12} | fields)
        self.assertEqual(got, status, text)
        return json.loads(text) if status == 200 else json.loads(text)["error"]["message"]

    def text(self, *messages, **fields):
        return self.chat(*messages, **fields)["choices"][0]["message"]["content"]

    def refusal(self, *messages, **fields):
        return self.chat(*messages, status=400, **fields)


class StopRules(Asked):
    def summary(self, **fields):
        answer = self.chat(**fields)
        return answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]

    def test_an_end_token_is_ignored_on_request(self):
        text, finish, tokens = self.summary()
        self.assertEqual((finish, tokens), ("stop", 3))
        self.assertTrue(free["text"].startswith(text.rstrip("\ufffd")) and text != free["text"], text)
        self.assertEqual(self.summary(ignore_eos=True), (free["text"], "length", 12))

    def test_no_answer_ends_before_its_least_tokens(self):
        whole = self.summary(min_tokens=3)
        self.assertGreater(whole[2], 3)
        self.assertTrue(whole[0].startswith(self.summary()[0].rstrip("\ufffd")))
        self.assertEqual(self.summary(min_tokens=2), self.summary(), "the end token is the third one")
        self.assertEqual(self.summary(min_tokens=12)[1:], ("length", 12))

    def test_a_stop_text_counts_behind_the_least_tokens(self):
        stop = free["text"][:2]
        self.assertNotIn(stop, free["text"][2:])
        self.assertEqual(self.summary(stop=stop)[:2], ("", "stop"))
        self.assertEqual(self.summary(stop=stop, ignore_eos=True, min_tokens=1), (free["text"], "length", 12))

    def test_tokens_of_the_request_end_an_answer(self):
        first, second = free["ids"][:2]
        self.assertEqual(self.summary(stop_token_ids=[first]), ("", "stop", 1))
        self.assertEqual(self.summary(stop_token_ids=[second, first + 1], ignore_eos=True)[1:], ("stop", 2))

    def test_rules_that_contradict_are_refused(self):
        self.assertIn("at most max_tokens, which is 12, got 13", self.refusal(min_tokens=13))
        self.assertIn("min_tokens: an answer of a given form ends where", self.refusal(min_tokens=2, response_format={"type": "json_object"}))
        self.assertIn("ignore_eos: an answer of a given form ends where", self.refusal(ignore_eos=True, structured_outputs={"choice": ["a"]}))
        self.assertIn("stop_token_ids: expected tokens", self.refusal(stop_token_ids=["a"]))
        self.assertIn("stop_token_ids: expected a list", self.refusal(stop_token_ids=3))
        self.assertIn("stop_token_ids: expected tokens of the model's", self.refusal(stop_token_ids=[100_000]))


class Benchmarks(Asked):
    def stream(self, path, request, headers=None):
        status, body, _ = self.server.send(path, request, headers=headers)
        self.assertEqual(status, 200, body)
        documents, ended = events(body)
        self.assertTrue(ended)
        return documents

    def test_vllm_bench_serve(self):
        """Its requests of both routes: it reads the text of the first choice, and counts tokens by the last document's usage."""
        usage = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, "model": "gqa"}
        headers = {"Authorization": "Bearer None", "x-request-id": "bench-0"}
        asked = {"prompt": "The cat sat", "repetition_penalty": 1.0, "max_tokens": 9, "logprobs": None, "temperature": 0.0, "top_p": 1.0} | usage
        documents = self.stream(COMPLETIONS, asked, headers)
        self.assertTrue(all("text" in document["choices"][0] for document in documents[:-1]))
        self.assertEqual((documents[-1]["choices"], documents[-1]["usage"]["completion_tokens"]), ([], 9))
        content = [{"type": "text", "text": QUESTION}, {"type": "image_url", "image_url": {"url": data_url(picture())}}]
        documents = self.stream(CHAT, {"messages": [{"role": "user", "content": content}], "max_completion_tokens": 9} | usage, headers)
        self.assertTrue(all("delta" in document["choices"][0] for document in documents[:-1]))
        self.assertEqual(documents[-1]["usage"]["completion_tokens"], 9)

    def test_sglang_bench_serving(self):
        """It takes every document of a stream to have a choice."""
        shared = {"model": "gqa", "temperature": 0.0, "max_tokens": 7, "stream": True, "ignore_eos": True}
        for path, asked in ((COMPLETIONS, {"prompt": "The cat sat", "best_of": 1}), (CHAT, {"messages": [user(QUESTION)]})):
            documents = self.stream(path, asked | shared)
            self.assertTrue(all(document["choices"] for document in documents))
            self.assertEqual(documents[-1]["choices"][0]["finish_reason"], "length")

    def test_open_webui(self):
        models = json.loads(self.server.send("/v1/models", headers={"Authorization": "Bearer sk-none", "Content-Type": "application/json"})[1])
        asked = {"model": models["data"][0]["id"], "messages": [user(QUESTION)], "stream": True, "stream_options": {"include_usage": True},
                 "metadata": {"chat_id": "a"}, "session_id": "b", "features": {"web_search": False}, "tool_ids": [], "max_tokens": 4, "temperature": 0}
        self.assertEqual(self.stream(CHAT, asked)[-1]["usage"]["completion_tokens"], 3)


class Messages(Asked):
    def test_several_system_messages_are_turns_of_the_template(self):
        words = tokenizers.Tokenizer.from_file(str(folder / "gqa" / "decoder" / "tokenizer.json"))
        turns = [("system", "Be brief."), ("system", "Be kind."), ("user", "Hi"), ("assistant", "Hi!"), ("system", "In prose."), ("user", QUESTION)]
        written = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"
        expected = self.chat(path=COMPLETIONS, prompt=words.encode(written, add_special_tokens=False).ids, ignore_eos=True)
        messages = [{"role": role, "content": text} for role, text in turns]
        answer = self.chat(*messages, ignore_eos=True)
        self.assertEqual(answer["choices"][0]["message"]["content"], expected["choices"][0]["text"])
        self.assertEqual(answer["usage"]["prompt_tokens"], expected["usage"]["prompt_tokens"])
        messages[4]["role"] = "developer"
        self.assertEqual(self.text(*messages, ignore_eos=True), expected["choices"][0]["text"])

    def test_answers_without_content(self):
        def after(answer, **fields):
            return self.text(user("Hi"), {"role": "assistant"} | answer, user(QUESTION), ignore_eos=True, **fields)
        said = after({"content": "No."})
        self.assertEqual(after({"content": None, "refusal": "No."}), said)
        self.assertEqual(after({"content": [{"type": "refusal", "refusal": "No."}]}), said)
        self.assertEqual(after({"content": "No.", "refusal": None, "tool_calls": [], "function_call": None, "audio": None}), said)
        empty = after({"content": ""})
        self.assertNotEqual(empty, said)
        self.assertEqual([after({"content": None}), after({})], [empty, empty])

    def test_what_of_a_conversation_is_not_there_is_refused(self):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for words, message in (("messages: the model's chat template calls no tools", {"role": "assistant", "content": None, "tool_calls": [call]}),
                               ("messages[1].tool_call_id: no message before it has a call '1'", {"role": "tool", "tool_call_id": "1", "content": "3"}),
                               ("messages[1]: an answer has a content or a refusal, not both", {"role": "assistant", "content": "a", "refusal": "b"}),
                               ("messages[1]: it has no content", {"role": "user", "content": None})):
            with self.subTest(words):
                self.assertIn(words, self.refusal(user("Hi"), message, user(QUESTION)))
        for name, value in {"add_generation_prompt": False, "continue_final_message": True, "chat_template": "{{ x }}", "documents": [{}], "regex": "a",
                            "allowed_token_ids": [3], "truncate_prompt_tokens": 4, "use_beam_search": True}.items():
            self.assertIn(f"{name}: this server does not support it", self.refusal(**{name: value}))
        self.assertIn("response_format makes an answer fit a JSON schema", self.refusal(tools=[call]))

    def test_one_meaning_in_several_spellings(self):
        drawn = {"temperature": 1.5, "ignore_eos": True}
        self.assertEqual(self.text(seed=1.0, **drawn), self.text(seed=1, **drawn))
        for stop in ("", [], None):
            self.assertEqual(self.text(stop=stop, ignore_eos=True), free["text"])
        self.assertEqual(self.chat(max_tokens=5.0, max_completion_tokens=5, ignore_eos=True)["usage"]["completion_tokens"], 5)
        self.assertIn("max_tokens, which is 12, got 5", self.refusal(max_completion_tokens=5))
        for seed in (1.5, 1e300, 2**64 - 1, "1"):
            self.assertIn("seed: expected a whole number", self.refusal(seed=seed))

    def test_several_answers_are_streamed_side_by_side(self):
        asked = {"messages": [user(QUESTION)], "n": 3, "seed": 4, "temperature": 1.5, "max_tokens": 9, "ignore_eos": True}
        whole = [choice["message"]["content"] for choice in json.loads(self.server.send(CHAT, asked)[1])["choices"]]
        documents, _ = events(self.server.send(CHAT, asked | {"stream": True})[1])
        streamed = ["", "", ""]
        for choice in (document["choices"][0] for document in documents):
            streamed[choice["index"]] += choice["delta"].get("content", "")
        self.assertEqual(streamed, whole)

    def test_variables_of_the_chat_template(self):
        with Server("--image-size", 28, model="thinking") as server:
            def tokens(variables=None):
                request = {"messages": [user("Hi")], "max_tokens": 1, "chat_template_kwargs": variables}
                status, text, _ = server.send(CHAT, request)
                return json.loads(text)["usage"]["prompt_tokens"] if status == 200 else json.loads(text)["error"]["message"]
            plain = tokens()
            self.assertEqual([tokens({}), tokens({"enable_thinking": True}), tokens({"unread": [1]})], [plain] * 3)
            self.assertGreater(tokens({"enable_thinking": False, "mood": "x"}), plain)
            self.assertGreater(tokens({"enable_thinking": False, "mood": "<|im_end|>"}), tokens({"enable_thinking": False, "mood": "x"}) + 3, "it is text")
            self.assertIn("the server sets the template's messages", tokens({"messages": []}))
            self.assertIn("the server sets the template's bos_token", tokens({"bos_token": "x"}))
            self.assertIn("chat_template_kwargs: expected an object", tokens(["enable_thinking"]))
        self.assertEqual(self.text(chat_template_kwargs={"enable_thinking": False}), self.text(), "ChatML reads none")


class OfVllm(Asked):
    """What vLLM's server has besides OpenAI's API."""
    def post(self, path, status=200, **fields):
        return self.chat(path=path, status=status, temperature=None, max_tokens=None, **fields)

    def test_texts_become_tokens(self):
        words = tokenizers.Tokenizer.from_file(str(folder / "gqa" / "decoder" / "tokenizer.json"))
        positions = json.loads((folder / "gqa" / "decoder" / "config.json").read_text())["max_position_embeddings"]
        for text in ("The cat sat", "größer: 猫\n\x00", "", "<|im_start|>user\nHi<|im_end|>", "cat " * 30_000):
            expected = words.encode(text, add_special_tokens=False).ids
            for fields in ({}, {"add_special_tokens": True}, {"add_special_tokens": False, "return_token_strs": False, "model": "gqa"}):
                self.assertEqual(self.post("/tokenize", prompt=text, **fields), {"count": len(expected), "max_model_len": positions, "tokens": expected})
            self.assertEqual(self.post("/detokenize", tokens=expected), {"prompt": text})
        special = words.token_to_id("<|im_end|>")
        self.assertEqual(self.post("/detokenize", tokens=[special]), {"prompt": "<|im_end|>"})

    def test_conversations_become_the_tokens_of_their_prompts(self):
        messages = [{"role": "system", "content": "Be brief."}, user("Hi"), {"role": "assistant", "content": "Hi!"}, user(QUESTION)]
        words = tokenizers.Tokenizer.from_file(str(folder / "gqa" / "decoder" / "tokenizer.json"))
        written = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages) + "<|im_start|>assistant\n"
        found = self.post("/tokenize", messages=messages, add_generation_prompt=True, add_special_tokens=False)
        self.assertEqual(found["tokens"], words.encode(written, add_special_tokens=False).ids)
        self.assertEqual(found["count"], self.chat(*messages, max_tokens=1)["usage"]["prompt_tokens"])
        self.assertEqual(self.post("/detokenize", tokens=found["tokens"])["prompt"], written)
        with Server("--image-size", 28, model="thinking") as server:
            def count(**fields):
                return json.loads(server.send("/tokenize", {"messages": [user("Hi")]} | fields)[1])["count"]
            self.assertGreater(count(chat_template_kwargs={"enable_thinking": False, "mood": "x"}), count())

    def test_what_is_not_tokenized_is_refused(self):
        shown = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(picture())}}]}]
        for words, path, fields in (("expected either a prompt or messages", "/tokenize", {}), ("expected either", "/tokenize", {"prompt": "Hi", "messages": [user("Hi")]}),
                                    ("prompt: expected a string", "/tokenize", {"prompt": ["Hi"]}), ("pictures are not tokenized", "/tokenize", {"messages": shown}),
                                    ("return_token_strs: this server", "/tokenize", {"prompt": "Hi", "return_token_strs": True}),
                                    ("add_special_tokens: it goes with a prompt", "/tokenize", {"messages": [user("Hi")], "add_special_tokens": True}),
                                    ("tools[0]: tools are of type function", "/tokenize", {"messages": [user("Hi")], "tools": [{}]}),
                                    ("tokens: expected a list", "/detokenize", {}), ("tokens: expected tokens", "/detokenize", {"tokens": [-1]}),
                                    ("tokens: token 1000000 is beyond the", "/detokenize", {"tokens": [3, 10**6]}), ("tokens: expected tokens", "/detokenize", {"tokens": ["a"]})):
            with self.subTest(words):
                self.assertIn(words, self.post(path, status=400, **fields))
        for path, fields in (("/tokenize", {"prompt": "Hi"}), ("/detokenize", {"tokens": [3]})):
            self.assertIn("has the model 'gqa'", self.post(path, status=404, model="gpt", **fields))
            self.assertEqual(self.server.send(path)[0], 405)

    def test_its_version_and_whether_it_runs(self):
        version = run("--version").stdout.split()[1]
        self.assertEqual(json.loads(self.server.send("/version")[1]), {"version": version})
        self.assertEqual(self.server.send("/ping")[:2], self.server.send("/health")[:2])
        for path in ("/ping", "/version"):
            self.assertEqual(self.server.send(path, {})[0], 405)
        (folder / "token").write_text("correct horse\n")
        with Server("--image-size", 28, "--token-file", folder / "token") as server:
            self.assertEqual([server.send(path)[0] for path in ("/ping", "/version")], [200, 401])
            self.assertEqual([server.send(path, {"prompt": "Hi"})[0] for path in ("/tokenize", "/detokenize")], [401, 401])


class Pages(unittest.TestCase):
    def test_pages_of_all_origins_may_ask_with_a_token(self):
        (folder / "token").write_text("correct horse\n")
        with Server("--image-size", 28, "--allow-origin", "*", "--token-file", folder / "token") as server:
            page = {"Origin": "https://example.com"}
            status, _, response = server.send(CHAT, method="OPTIONS", headers=page | {"Access-Control-Request-Method": "POST"})
            self.assertEqual((status, response.getheader("Access-Control-Allow-Origin")), (204, page["Origin"]))
            self.assertEqual(server.send("/v1/models", headers=page)[0], 401)
            self.assertEqual(server.send("/v1/models", headers=page | {"Authorization": "Bearer correct horse"})[0], 200)
        alone = run("serve", folder / "gqa", "--allow-origin", "*", "--port", 0)
        self.assertEqual(alone.returncode, 2)
        self.assertIn("--token-file", alone.stderr)

    def test_the_log_says_once_which_page_was_refused(self):
        with Server("--image-size", 28) as server:
            for _ in range(3):
                self.assertEqual(server.send("/v1/models", headers={"Origin": "http://localhost:3000"})[0], 403)
            self.assertEqual(server.stop(), 0)
            self.assertEqual(server.log.count("--allow-origin http://localhost:3000 lets them"), 1, server.log)


class Beginnings(unittest.TestCase):
    def test_a_port_that_is_in_use_is_found_before_the_model_is_read(self):
        with Server("--image-size", 28) as server:
            second = run("serve", folder / "nowhere", "--port", server.port)
        self.assertEqual(second.returncode, 7, second.stderr)
        self.assertIn("another program has this port", second.stderr)

    def test_addresses(self):
        other = run("serve", folder / "gqa", "--host", "192.0.2.1", "--port", 0)
        self.assertEqual(other.returncode, 2)
        self.assertIn("give an address of this machine", other.stderr)
        with Server("--image-size", 28, "--host", "localhost") as server:
            self.assertEqual(server.send("/health")[0], 200)

    def test_what_is_no_model(self):
        shutil.copytree(folder / "gqa", folder / "wordless")
        (folder / "wordless" / "decoder" / "tokenizer.json").unlink()
        for words, model in (("copy tokenizer.json of the decoder", "wordless"), ("expected a folder, got a file", "gqa/fvlm.json"),
                             ("name a model directory, a checkpoint or the folder of a run", "runs/missing")):
            with self.subTest(words):
                refused = run("serve", folder / model, "--port", 0)
                self.assertEqual(refused.returncode, 4)
                self.assertIn(words, refused.stderr)


if __name__ == "__main__":
    unittest.main()
