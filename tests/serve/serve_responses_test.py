"""`/v1/responses` asked by the package `openai`: its objects, events, pictures, forms and exceptions, beside what `/v1/chat/completions` answers to
the same.

usage: serve_responses_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels or openai are missing."""
import concurrent.futures
import json
import shutil
import sys
import unittest

try:
    import openai
    import pydantic
    from openai.types.responses import Response, ResponseStreamEvent
except ImportError as error:
    print(f"Skipped\nthe package openai is not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

from against_oracle import folder, tool
from running_server import Server, data_url, make_endless, picture, user, with_image

RESPONSES = "/v1/responses"
QUESTION = "What is this?"
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
EVENT = pydantic.TypeAdapter(ResponseStreamEvent)
BEGIN = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
END = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]


class Corner(pydantic.BaseModel):
    x: int
    y: int


def setUpModule():
    tool("make-tiny", "model", "gqa", folder / "gqa", "--seed", "1")
    for name in ("endless", "brief"):
        shutil.copytree(folder / "gqa", folder / name)
    config = folder / "gqa" / "decoder" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 2048}))


def client_of(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="-", max_retries=0, timeout=1800)


def message(role, *parts):
    return {"type": "message", "role": role, "content": list(parts)}


def part(text):
    return {"type": "input_text", "text": text}


def shown(file):
    return {"type": "input_image", "detail": "auto", "image_url": data_url(file)}


class Asked(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--image-size", 28)
        cls.client = client_of(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop() == 0, cls.server.log

    def ask(self, asked=QUESTION, **fields):
        """A response, of which every field has the type that the package names."""
        response = self.client.responses.create(**{"model": "gqa", "input": asked, "temperature": 0, "max_output_tokens": 8} | fields)
        Response.model_validate(response.to_dict(), strict=True)
        return response

    def stream(self, asked=QUESTION, **fields):
        events = list(self.client.responses.create(**{"model": "gqa", "input": asked, "temperature": 0, "max_output_tokens": 8, "stream": True} | fields))
        for event in events:
            EVENT.validate_python(event.to_dict(), strict=True)
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        return events

    def text(self, asked=QUESTION, **fields):
        return self.ask(asked, **fields).output_text

    def chat(self, *messages, **fields):
        return self.client.chat.completions.create(**{"model": "gqa", "messages": list(messages), "temperature": 0, "max_tokens": 8} | fields)

    def chat_text(self, *messages, **fields):
        return self.chat(*messages, **fields).choices[0].message.content

    def refusal(self, kind=openai.BadRequestError, **fields):
        with self.assertRaises(kind) as raised:
            self.ask(**fields)
        return raised.exception.message


class Answers(Asked):
    def test_are_those_of_a_chat(self):
        response, chat = self.ask(), self.chat(user(QUESTION))
        self.assertEqual(response.output_text, chat.choices[0].message.content)
        self.assertEqual((response.object, response.model, response.status, response.incomplete_details.reason),
                         ("response", "gqa", "incomplete", "max_output_tokens"))
        item, = response.output
        self.assertEqual((item.type, item.role, item.status, len(item.content)), ("message", "assistant", "incomplete", 1))
        usage = response.usage
        self.assertEqual((usage.input_tokens, usage.output_tokens, usage.total_tokens),
                         (chat.usage.prompt_tokens, chat.usage.completion_tokens, chat.usage.total_tokens))
        self.assertEqual(self.ask().usage.input_tokens_details.cached_tokens, self.chat(user(QUESTION)).usage.prompt_tokens_details.cached_tokens)
        self.assertNotEqual((self.ask().id, item.id), (response.id, self.ask().output[0].id), "each has its own")

    def test_repeat_what_they_were_asked_for(self):
        response = self.ask(instructions="Be brief.", metadata={"a": "b"}, temperature=0.5, top_p=0.9, user="me", store=True, parallel_tool_calls=False)
        self.assertEqual((response.instructions, response.metadata, response.temperature, response.top_p, response.max_output_tokens),
                         ("Be brief.", {"a": "b"}, 0.5, 0.9, 8))
        self.assertFalse(response.parallel_tool_calls or response.to_dict()["store"], "nothing is kept")
        plain = self.client.responses.create(model="gqa", input="Hi", max_output_tokens=1)
        self.assertEqual((plain.instructions, plain.metadata, plain.temperature, plain.text.format.type, plain.tools, plain.tool_choice),
                         (None, {}, 1, "text", [], "auto"))

    def test_are_completed_at_a_stop_text(self):
        whole = self.text(max_output_tokens=20)
        stop = next(letter for letter in whole[len(whole) // 2:] if letter.isascii() and letter.isprintable())
        stops = {"max_output_tokens": 20, "extra_body": {"stop": stop}}
        response, last = self.ask(**stops), self.stream(**stops)[-1]
        self.assertEqual((response.status, response.output[0].status, response.incomplete_details), ("completed", "completed", None))
        self.assertEqual((last.type, last.response.output_text, response.output_text), ("response.completed", *[whole[:whole.index(stop)]] * 2))

    def test_may_be_empty(self):
        vocabulary = json.loads((folder / "brief" / "decoder" / "config.json").read_text())["vocab_size"]
        (folder / "brief" / "decoder" / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(1, vocabulary))}))
        with Server("--image-size", 28, model="brief") as server, client_of(server) as client:
            response = client.responses.create(model="brief", input=QUESTION)
            events = list(client.responses.create(model="brief", input=QUESTION, stream=True))
        self.assertEqual((response.status, response.output_text, response.usage.output_tokens), ("completed", "", 1))
        self.assertEqual([event.type for event in events], BEGIN + END + ["response.completed"])

    def test_pictures_and_turns_are_those_of_a_chat(self):
        without = self.ask("And this?").usage.input_tokens
        response = self.ask([message("user", shown(picture()), part("And this?"))])
        self.assertEqual(response.usage.input_tokens - without, 1, "a row of the decoder for the picture")
        self.assertEqual(response.output_text, self.chat_text(with_image("And this?", picture())))
        self.assertNotEqual(response.output_text, self.text("And this?"))
        turns = [{"role": "user", "content": "Hi"}, *(item.to_dict() for item in self.ask("Hi").output), message("user", part("And"), part("then?"))]
        said = self.text("Hi")
        self.assertEqual(self.text(turns), self.chat_text(user("Hi"), {"role": "assistant", "content": said}, user("And\nthen?")))
        refused = [user("Hi"), message("assistant", {"type": "refusal", "refusal": "No."}), user("Why?")]
        self.assertEqual(self.text(refused), self.chat_text(user("Hi"), {"role": "assistant", "content": "No."}, user("Why?")))

    def test_instructions_are_the_turn_of_the_system(self):
        system = {"role": "system", "content": "Be brief."}
        brief = self.chat_text(system, user(QUESTION))
        self.assertNotEqual(brief, self.text())
        self.assertEqual([self.text(instructions="Be brief."), self.text([system, user(QUESTION)]),
                          self.text([message("developer", part("Be brief.")), user(QUESTION)])], [brief] * 3)
        self.assertEqual(self.text([{"role": "developer", "content": "In prose."}, user(QUESTION)], instructions="Be brief."),
                         self.chat_text(system, {"role": "system", "content": "In prose."}, user(QUESTION)))

    def test_have_log_probabilities(self):
        tokens = self.ask(**LOGPROBS).output[0].content[0].logprobs
        expected = self.chat(user(QUESTION), logprobs=True, top_logprobs=3).choices[0].logprobs.content
        self.assertEqual([token.bytes for token in tokens], [token.bytes for token in expected])
        for token, other in zip(tokens, expected, strict=True):
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertAlmostEqual(token.logprob, other.logprob, delta=1e-5)
        *_, done, content, item, last = self.stream(**LOGPROBS)
        streamed = [token for event in self.stream(**LOGPROBS) if event.type == "response.output_text.delta" for token in event.logprobs]
        for found in (streamed, done.logprobs, content.part.logprobs, item.item.content[0].logprobs, last.response.output[0].content[0].logprobs):
            self.assertEqual([token.token for token in found], [token.token for token in tokens])
        self.assertEqual(self.ask().output[0].content[0].logprobs, [])

    def test_have_the_form_that_was_asked_for(self):
        drawn = {"temperature": 1, "max_output_tokens": 600}
        parsed = self.client.responses.parse(model="gqa", input=QUESTION, text_format=Corner, **drawn)
        self.assertIsInstance(parsed.output_parsed, Corner)
        self.assertEqual(parsed.text.format.schema_["title"], "Corner")
        with self.client.responses.stream(model="gqa", input=QUESTION, text_format=Corner, **drawn) as stream:
            self.assertIsInstance(stream.get_final_response().output_parsed, Corner)
        schema = {"type": "object", "properties": {"z": {"type": "boolean"}, "a": {"type": "boolean"}}, "required": ["z", "a"]}
        response = self.ask(text={"format": {"type": "json_schema", "name": "x", "schema": schema}}, **drawn)
        self.assertEqual(list(json.loads(response.output_text)), ["z", "a"], "in the schema's order")
        self.assertTrue(self.text(text={"format": {"type": "json_object"}}, **drawn).startswith("{"))
        self.assertIn(self.text(extra_body={"structured_outputs": {"choice": ["a cat", "a dog"]}}), ("a cat", "a dog"))

    def test_have_the_attention(self):
        asked = [message("user", shown(picture()), part("And this?"))]
        whole = self.ask(asked, extra_body={"attention": True})
        self.assertEqual(len(whole.model_extra["attention"]["frames"][0]["shares"]), 16)
        last = self.stream(asked, extra_body={"attention": True})[-1].response
        self.assertEqual((last.model_extra["attention"], last.output_text), (whole.model_extra["attention"], whole.output_text))

    def test_settings_beyond_openais_are_those_of_a_chat(self):
        settings = {"seed": 5, "top_k": 7, "min_p": 0.01, "repetition_penalty": 1.1, "ignore_eos": True, "stop": ["."]}
        drawn = self.text(temperature=1.5, extra_body=settings)
        self.assertEqual(drawn, self.chat_text(user(QUESTION), temperature=1.5, extra_body=settings))
        self.assertNotEqual(drawn, self.text(temperature=1.5, extra_body=settings | {"seed": 6}))


class Streams(Asked):
    def test_have_the_events_that_openai_names(self):
        whole, events = self.ask(), self.stream()
        kinds = [event.type for event in events]
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        self.assertEqual(kinds, BEGIN + ["response.output_text.delta"] * len(deltas) + END + ["response.incomplete"])
        self.assertGreater(len(deltas), 2)
        created, last = events[0].response, events[-1].response
        self.assertEqual((created.status, created.output, created.usage, created.id), ("in_progress", [], None, last.id))
        done, content, item = events[-4:-1]
        texts = ["".join(deltas), done.text, content.part.text, item.item.content[0].text, last.output_text]
        self.assertEqual(texts, [whole.output_text] * 5)
        self.assertEqual({event.item_id for event in events[3:-2]}, {last.output[0].id})
        self.assertEqual((last.incomplete_details, last.usage.total_tokens), (whole.incomplete_details, whole.usage.total_tokens))

    def test_are_gathered_by_openai(self):
        with self.client.responses.stream(model="gqa", input=QUESTION, temperature=0, max_output_tokens=8) as stream:
            snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        self.assertEqual(snapshots[-1], self.text())

    def test_are_named_events_without_another_end(self):
        status, body, response = self.server.send(RESPONSES, {"input": "Hi", "stream": True, "max_output_tokens": 2, "stream_options": {"include_obfuscation": False}})
        self.assertEqual((status, response.getheader("Content-Type")), (200, "text/event-stream; charset=utf-8"))
        for event in body.removesuffix("\n\n").split("\n\n"):
            name, data = event.split("\n")
            self.assertEqual(name, f"event: {json.loads(data.removeprefix('data: '))['type']}")
        self.assertNotIn("[DONE]", body)

    def test_of_many_clients_are_those_of_each_alone(self):
        questions = [f"Tell me of {number} cats." for number in range(12)]
        alone = [self.text(question) for question in questions]
        with concurrent.futures.ThreadPoolExecutor(12) as clients:
            together = list(clients.map(lambda question: self.stream(question)[-1].response.output_text, questions))
        self.assertEqual(together, alone)

    def test_of_clients_that_leave_hold_nothing(self):
        make_endless("endless")
        with Server("--image-size", 28, "--queue", 1, model="endless") as server, client_of(server) as client:
            stream = client.responses.create(model="endless", input="Tell a story.", stream=True, max_output_tokens=4000)
            next(iter(stream))
            with self.assertRaises(openai.RateLimitError) as raised:
                client.responses.create(model="endless", input="Hi")
            self.assertEqual(raised.exception.response.headers["retry-after"], "1")
            stream.close()
            server.wait_for(requests_running=0, requests_waiting=0, requests_abandoned_total=1)
            after = server.metrics()
            self.assertEqual(after["cache_pages_free"] + after["cache_pages_cached"], after["cache_pages"])
            self.assertEqual(client.responses.create(model="endless", input="Hi", max_output_tokens=2).usage.output_tokens, 2)


class Refusals(Asked):
    def test_name_the_field_and_what_to_do(self):
        tools = [{"type": "function", "name": "f", "parameters": {}, "strict": True}]
        kept = "it: nothing is kept between two requests; send the whole conversation as input"
        cases = [("previous_response_id: this server does not support " + kept, {"previous_response_id": "resp_1"}),
                 ("conversation: this server does not support " + kept, {"conversation": "conv_1"}), ("background: this server", {"background": True}),
                 ("in /v1/responses text.format", {"tools": tools}), ("the request has no tools", {"tool_choice": "required"}),
                 ("prompt: this server", {"prompt": {"id": "pmpt_1"}}), ("truncation: expected disabled", {"truncation": "auto"}),
                 ("include: expected message.output_text.logprobs", {"include": ["everything"]}), ("include: expected a list", {"include": "all"}),
                 ("top_logprobs: it goes with", {"top_logprobs": 2}), ("top_logprobs: expected a whole number", LOGPROBS | {"top_logprobs": 21}),
                 ("max_output_tokens: expected a whole number from 1", {"max_output_tokens": 0}), ("temperature: expected", {"temperature": -1}),
                 ("metadata: expected an object", {"metadata": {"a": 1}}), ("metadata: expected", {"metadata": {str(i): "" for i in range(17)}}),
                 ("metadata: expected", {"metadata": {"a": "b" * 20_000}}), ("instructions: expected a string", {"instructions": ["a"]}),
                 ("text: expected an object", {"text": "json"}), ("text.format: expected an object whose type", {"text": {"format": {"type": "grammar"}}}),
                 ("text.format: expected {\"type\": \"json_schema\", \"name\"", {"text": {"format": {"type": "json_schema", "name": "x"}}}),
                 ("text.format: the schema", {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "text"}}}}),
                 ("store: expected true or false", {"store": "yes"}), ("stream_options: expected an object", {"stream_options": 1}),
                 ("min_tokens: expected at most max_output_tokens, which is 8, got 9", {"extra_body": {"min_tokens": 9}}),
                 ("n: a response has one answer", {"extra_body": {"n": 2}}), ("in /v1/responses it is input", {"extra_body": {"messages": [user("Hi")]}}),
                 ("in /v1/responses it is max_output_tokens", {"extra_body": {"max_tokens": 3}}),
                 ("in /v1/responses it is text.format", {"extra_body": {"response_format": {"type": "json_object"}}})]
        for words, fields in cases:
            with self.subTest(words=words, fields=str(fields)[:60]):
                self.assertIn(words, self.refusal(**fields))
        self.assertIn("has the model 'gqa'", self.refusal(openai.NotFoundError, model="gpt"))

    def test_name_the_item_of_the_input(self):
        call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
        cases = [("input: expected a text or a list of messages, got nothing", None), ("input: expected a text or a list", 3), ("input: expected a list of messages", []),
                 ('input[1]: items are of type message, function_call or', [user("Hi"), {"type": "web_search_call"}]), ("input[0]: a role is", [{"id": "msg_1"}]),
                 ("input: expected a list of messages", [{"type": "reasoning", "summary": []}]), ("input[0]: expected an object", ["Hi"]),
                 ("input[0]: it has no content", [{"role": "user"}]),
                 ("input[0].content[0]: parts are of type", [message("user", {"type": "input_file", "file_id": "file-1"})]),
                 ("this server keeps no files", [message("user", {"type": "input_image", "file_id": "file-1"})]),
                 ("fetches nothing", [message("user", {"type": "input_image", "image_url": "http://127.0.0.1:1/x.png"})]),
                 ("input[1]: it follows an answer whose tool_calls are no list, but 5", [{"role": "assistant", "content": "x", "tool_calls": 5}, call]),
                 ("only a user's", [message("assistant", shown(picture())), user("Hi")]),
                 ("has its words in \"text\"", [message("user", {"type": "input_text", "input_text": "Hi"})])]
        for words, asked in cases:
            with self.subTest(words=words):
                status, text, _ = self.server.send(RESPONSES, {"input": asked})
                self.assertEqual(status, 400, text)
                self.assertIn(words, json.loads(text)["error"]["message"])

    def test_nothing_is_found_again(self):
        response = self.ask(store=True)
        for again in (self.client.responses.retrieve, self.client.responses.delete, self.client.responses.cancel):
            with self.assertRaises(openai.NotFoundError) as raised:
                again(response.id)
            self.assertIn("keeps no responses", raised.exception.message)
        self.assertEqual(self.server.send(RESPONSES)[0], 405)

    def test_fields_that_ask_for_nothing_change_nothing(self):
        usual = {"tools": [], "tool_choice": "auto", "truncation": "disabled", "previous_response_id": None, "conversation": None, "background": False, "max_tool_calls": None,
                 "include": ["reasoning.encrypted_content"], "reasoning": {"effort": None}, "service_tier": "auto", "text": {"format": {"type": "text"}, "verbosity": "medium"},
                 "top_logprobs": 0, "prompt_cache_key": "a", "safety_identifier": "b", "store": False, "metadata": None}
        self.assertEqual(self.text(**usual), self.text())


if __name__ == "__main__":
    unittest.main()
