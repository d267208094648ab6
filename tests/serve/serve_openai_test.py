"""`fvlm-engine serve` asked by the package `openai`: its objects, streams, pictures and exceptions.

usage: serve_openai_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels or openai are missing."""
import asyncio
import base64
import math
import sys
import unittest

try:
    import openai
except ImportError as error:
    print(f"Skipped\nthe package openai is not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

from against_oracle import folder, tool
from running_server import Server, data_url, make_endless, picture, user, with_image

TOKEN = "correct horse"


def setUpModule():
    for name in ("gqa", "endless"):
        tool("make-tiny", "model", "gqa", folder / name, "--seed", "1")
    (folder / "token").write_text(TOKEN + "\n")


class OpenAi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--image-size", 28, "--token-file", folder / "token")
        cls.client = cls.with_key(TOKEN)

    @classmethod
    def with_key(cls, key):
        return openai.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key=key, max_retries=0, timeout=1800)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop() == 0, cls.server.log

    def ask(self, *messages, **fields):
        return self.client.chat.completions.create(**{"model": "gqa", "messages": list(messages), "temperature": 0, "max_tokens": 8} | fields)

    def test_reads_the_list_of_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["gqa"])
        self.assertEqual(self.client.models.retrieve("gqa").owned_by, "fvlm-engine")
        with Server("--image-size", 28, "--name", "ein Modell/größer") as server:
            with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, timeout=1800) as client:
                self.assertEqual(client.models.retrieve(client.models.list().data[0].id).id, "ein Modell/größer")

    def test_reads_an_answer(self):
        answer = self.ask(user("What is this?"))
        self.assertEqual((answer.object, answer.model, answer.choices[0].message.role), ("chat.completion", "gqa", "assistant"))
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_streams_the_same_answer(self):
        whole = self.ask(user("What is this?"))
        parts = list(self.ask(user("What is this?"), stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(part.choices[0].delta.content or "" for part in parts if part.choices), whole.choices[0].message.content)
        self.assertEqual(parts[-1].usage, whole.usage)
        self.assertTrue(all(part.usage is None for part in parts[:-1]))

    def test_gets_several_answers_of_a_seed(self):
        def texts(**fields):
            return [choice.message.content for choice in self.ask(user("Hi"), n=3, temperature=1.5, max_tokens=12, **fields).choices]
        first = texts(seed=5)
        self.assertEqual(len(set(first)), 3)
        self.assertEqual(texts(seed=5), first)
        self.assertNotEqual(texts(seed=6), first)

    def test_stops_before_a_text(self):
        whole = self.ask(user("Describe this."), temperature=1, seed=1, max_tokens=20).choices[0].message.content
        stop = next(letter for letter in whole[len(whole) // 2:] if letter.isascii() and letter.isprintable())
        answer = self.ask(user("Describe this."), temperature=1, seed=1, max_tokens=20, stop=[stop]).choices[0]
        self.assertEqual((answer.message.content, answer.finish_reason), (whole[:whole.index(stop)], "stop"))

    def test_sends_pictures(self):
        without = self.ask(user("And this?")).usage.prompt_tokens
        one = self.ask(with_image("And this?", picture())).usage.prompt_tokens
        two = self.ask({"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(picture(step=step))}} for step in (3, 9)]
                        + [{"type": "text", "text": "And this?"}]}).usage.prompt_tokens
        self.assertEqual((one - without, two - without), (1, 2), "a row of the decoder for each picture")

    def test_continues_a_text(self):
        answer = self.client.completions.create(model="gqa", prompt="The cat sat", max_tokens=6, temperature=0)
        parts = self.client.completions.create(model="gqa", prompt="The cat sat", max_tokens=6, temperature=0, stream=True)
        self.assertEqual("".join(part.choices[0].text for part in parts), answer.choices[0].text)
        self.assertEqual(answer.usage.completion_tokens, 6)

    def test_gets_the_attention_on_request(self):
        answer = self.ask(with_image("And this?", picture()), extra_body={"attention": True})
        shown = answer.model_extra["attention"]
        self.assertEqual((shown["rows"], shown["columns"], len(shown["frames"])), (4, 4, 1))
        shares = shown["frames"][0]["shares"]
        self.assertEqual(len(shares), 16)
        self.assertTrue(all(share >= 0 for share in shares) and 0 < sum(shares) <= 1.001, shares) # the rest looks at CLS
        jpeg = base64.b64decode(shown["frames"][0]["image"].removeprefix("data:image/jpeg;base64,"))
        self.assertEqual(jpeg[:3], b"\xff\xd8\xff")
        self.assertEqual(answer.choices[0].message, self.ask(with_image("And this?", picture())).choices[0].message)
        self.assertNotIn("attention", self.ask(with_image("And this?", picture())).model_extra)

    def test_gets_log_probabilities(self):
        whole = self.ask(user("What is this?"), logprobs=True, top_logprobs=3).choices[0]
        tokens = whole.logprobs.content
        spelled = b"".join(bytes(token.bytes) for token in tokens).decode(errors="ignore")
        self.assertEqual(spelled, whole.message.content.replace("\ufffd", ""), "but for what is no character")
        for token in tokens:
            likely = [other.logprob for other in token.top_logprobs]
            self.assertEqual((len(likely), likely, likely[0]), (3, sorted(likely, reverse=True), token.logprob), "the likeliest was chosen")
            self.assertLess(sum(map(math.exp, likely)), 1)
        parts = self.ask(user("What is this?"), logprobs=True, top_logprobs=3, stream=True)
        streamed = [token for part in parts if part.choices and part.choices[0].logprobs for token in part.choices[0].logprobs.content]
        self.assertEqual([token.bytes for token in streamed], [token.bytes for token in tokens])
        for one, other in zip(streamed, tokens):  # passes of fewer rows, as the prompt is shared: sums in another order
            self.assertAlmostEqual(one.logprob, other.logprob, delta=1e-5)
        self.assertIsNone(self.ask(user("What is this?")).choices[0].logprobs)

    def test_gets_log_probabilities_of_a_continued_text(self):
        def complete(**fields):
            return self.client.completions.create(model="gqa", prompt="The cat sat", max_tokens=8, temperature=0, **fields)
        whole = complete(logprobs=3).choices[0]
        found = whole.logprobs
        lengths = {len(found.tokens), len(found.token_logprobs), len(found.top_logprobs), len(found.text_offset)}
        self.assertEqual(lengths, {8}, "a token each")
        for token, logprob, top, offset in zip(found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset):
            self.assertEqual((len(top), max(top.values()), top[token]), (3, logprob, logprob), "the likeliest was chosen")
            self.assertLess(sum(map(math.exp, top.values())), 1)
            if not token.startswith("bytes:") and "\ufffd" not in whole.text:
                self.assertEqual(whole.text[offset:offset + len(token)], token)
        self.assertEqual(found.text_offset[0], 0)
        chat = self.ask(user("Hi"), logprobs=True, max_tokens=1).choices[0].logprobs.content[0]
        self.assertLess(chat.logprob, 0)
        self.assertEqual([list(top) for top in complete(logprobs=0).choices[0].logprobs.top_logprobs], [[token] for token in found.tokens])
        streamed = [part.choices[0].logprobs for part in complete(logprobs=3, stream=True) if part.choices[0].logprobs]
        self.assertEqual([token for part in streamed for token in part.tokens], found.tokens)
        self.assertEqual([offset for part in streamed for offset in part.text_offset], found.text_offset)
        self.assertEqual([top for part in streamed for top in part.top_logprobs], found.top_logprobs)
        self.assertIsNone(complete().choices[0].logprobs)
        with self.assertRaises(openai.BadRequestError) as raised:
            complete(logprobs=6)
        self.assertIn("logprobs: expected a whole number from 0 to 5", raised.exception.message)

    def test_says_what_of_a_prompt_was_computed_before(self):
        first = self.ask(user("Tell me of the cat that sat on the mat, and of the dog."))
        turns = [user("Tell me of the cat that sat on the mat, and of the dog."), {"role": "assistant", "content": first.choices[0].message.content},
                 user("And then?")]
        self.assertGreater(self.ask(*turns).usage.prompt_tokens_details.cached_tokens, 16, "a turn takes up the last one")

    def test_raises_its_own_exceptions(self):
        cases = [(openai.BadRequestError, "temperature", {"temperature": -1}), (openai.BadRequestError, "tools", {"tools": [
                     {"type": "function", "function": {"name": "f", "parameters": {}}}]}),
                 (openai.BadRequestError, "top_logprobs", {"top_logprobs": 2}), (openai.NotFoundError, "has the model", {"model": "gpt"})]
        for kind, words, fields in cases:
            with self.subTest(words=words), self.assertRaises(kind) as raised:
                self.ask(user("Hi"), **fields)
            self.assertIn(words, raised.exception.message)
            self.assertEqual(raised.exception.body["type"], "invalid_request_error")
        with self.assertRaises(openai.AuthenticationError), self.with_key("wrong") as wrong:
            wrong.models.list()

    def test_is_told_to_wait(self):
        with Server("--queue", 1) as server, openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="-", max_retries=0) as client:
            def ask(**fields):
                return client.chat.completions.create(model="gqa", messages=[user("Tell a story.")], temperature=5, stream=True, **fields)
            with ask(max_tokens=400, n=8) as stream:
                next(iter(stream))
                with self.assertRaises(openai.RateLimitError) as raised:
                    ask(max_tokens=1)
            self.assertEqual(raised.exception.response.headers["retry-after"], "1")

    def test_asks_again_when_it_is_told_to_wait(self):
        make_endless("endless")
        refusals = []
        def leave_at_429(response):
            if response.status_code == 429:
                refusals.append(response)
                stream.close()
        with Server("--image-size", 28, "--queue", 1, model="endless") as server:
            http = openai.DefaultHttpxClient(event_hooks={"response": [leave_at_429]})
            with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="-", max_retries=20, http_client=http) as client:
                def ask(**fields):
                    return client.chat.completions.create(model="endless", messages=[user("Tell a story.")], **fields)
                stream = ask(stream=True, max_tokens=4000)
                next(iter(stream))
                self.assertEqual(ask(max_tokens=2).usage.completion_tokens, 2)
        self.assertTrue(refusals)

class AsyncOpenAi(unittest.IsolatedAsyncioTestCase):
    """Many tasks of one client, whose answers would go on for thousands of tokens."""
    async def asyncSetUp(self):
        make_endless("endless")
        self.server = Server("--image-size", 28, "--queue", 40, model="endless")
        self.client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key="-", max_retries=0, timeout=1800)

    async def asyncTearDown(self):
        await self.client.close()
        self.assertEqual(self.server.stop(), 0, self.server.log)

    def ask(self, client=None, **fields):
        return (client or self.client).chat.completions.create(**{"model": "endless", "messages": [user("Tell a story.")], "temperature": 2} | fields)

    async def test_tasks_that_are_cancelled_give_their_places_back(self):
        begun = [asyncio.Event() for _ in range(32)]
        async def read(number):
            leaves, parts = number % 3 == 0, 0
            async for part in await self.ask(stream=True, seed=number, max_tokens=4000 if leaves else 40):
                parts += 1
                begun[number].set()
            return parts
        tasks = [asyncio.create_task(read(number)) for number in range(32)]
        for number in range(0, 32, 3):
            await begun[number].wait()
            tasks[number].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for number, result in enumerate(results):
            if number % 3 == 0:
                self.assertIsInstance(result, asyncio.CancelledError)
            else:
                self.assertGreater(result, 10)
        await asyncio.to_thread(self.server.wait_for, requests_running=0, requests_waiting=0)
        after = self.server.metrics()
        self.assertEqual((after["requests_abandoned_total"], after["requests_answered_total"]), (11, 21))
        self.assertEqual(after["cache_pages_free"] + after["cache_pages_cached"], after["cache_pages"])

    async def test_a_request_that_takes_too_long_is_given_up(self):
        with self.assertRaises(openai.APITimeoutError):
            await self.ask(self.client.with_options(timeout=0.5), n=8, max_tokens=4000)
        await asyncio.to_thread(self.server.wait_for, requests_running=0, requests_waiting=0)
        self.assertEqual(self.server.metrics()["requests_abandoned_total"], 1)


if __name__ == "__main__":
    unittest.main()
