"""Anthropic's /v1/messages by its own client: the answers are those of /v1/chat/completions, with thoughts, calls of tools, pictures and forms, whole and
as a stream.

usage: serve_messages_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels or anthropic are missing."""
import base64
import json
import sys
import unittest

try:
    import anthropic
except ImportError as error:
    print(f"Skipped\nthe package anthropic is not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

from against_oracle import folder
from running_server import Server, data_url, picture
from thinking_model import ASKED, CALL, SAID, SYSTEM, THOUGHT, TOOL, TOOL_THOUGHT, make_model

ADD = {"name": "add", "input_schema": TOOL["function"]["parameters"]}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(picture()).decode()}}
FORM = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["sum"], "additionalProperties": False}


def setUpModule():
    make_model()


def client_of(server, **settings):
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", **{"api_key": "none", "max_retries": 0} | settings)


class Messages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(model="run"))
        cls.client = cls.enterClassContext(client_of(cls.server))

    def request(self, *messages, **fields):
        body = {"temperature": 0} | fields.pop("extra_body", {})  # of which this client knows nothing any more
        return {"model": "run", "system": SYSTEM["content"], "messages": [{"role": "user", "content": ASKED}, *messages], "max_tokens": 200, "extra_body": body} | fields

    def ask(self, *messages, **fields):
        return self.client.messages.create(**self.request(*messages, **fields))

    def streamed(self, *messages, **fields):
        """The message that the client puts together, and its events."""
        with self.client.messages.stream(**self.request(*messages, **fields)) as stream:
            events = [event.type for event in stream if event.type not in ("text", "thinking", "input_json", "signature")]
            return stream.get_final_message(), events

    def chat(self, *messages, **fields):
        request = {"messages": [SYSTEM, {"role": "user", "content": ASKED}, *messages], "temperature": 0, "max_tokens": 200} | fields
        status, text, _ = self.server.send("/v1/chat/completions", request)
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def test_an_answer_whole_and_in_events(self):
        whole = self.ask()
        self.assertEqual([block.type for block in whole.content], ["thinking", "text"])
        self.assertEqual((whole.content[0].thinking, whole.content[1].text), (THOUGHT, SAID))
        self.assertEqual((whole.role, whole.model, whole.stop_reason, whole.stop_sequence), ("assistant", "run", "end_turn", None))
        usage = self.chat()["usage"]
        self.assertEqual((whole.usage.input_tokens + whole.usage.cache_read_input_tokens, whole.usage.output_tokens, whole.usage.output_tokens_details.thinking_tokens),
                         (usage["prompt_tokens"], usage["completion_tokens"], usage["completion_tokens_details"]["reasoning_tokens"]))
        final, events = self.streamed()
        self.assertEqual([block.to_dict() for block in final.content], [block.to_dict() for block in whole.content])
        self.assertEqual((final.stop_reason, final.usage.output_tokens), ("end_turn", whole.usage.output_tokens))
        self.assertEqual(final.usage.input_tokens + final.usage.cache_read_input_tokens, usage["prompt_tokens"])
        block = ["content_block_start", "content_block_delta", "content_block_stop"]
        self.assertEqual([event for event, before in zip(events, ["", *events]) if event != before], ["message_start", *block, *block, "message_delta", "message_stop"])
        counted = self.client.messages.count_tokens(**{key: value for key, value in self.request().items() if key in ("model", "system", "messages")})
        self.assertEqual(counted.input_tokens, usage["prompt_tokens"])

    def test_a_conversation_goes_on(self):
        whole = self.ask()
        again = {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "then?", "cache_control": {"type": "ephemeral"}}]}
        answer = self.ask({"role": "assistant", "content": [block.to_dict() for block in whole.content]}, again, max_tokens=24)
        expected = self.chat({"role": "assistant", "content": SAID, "reasoning_content": THOUGHT}, again | {"content": again["content"]}, max_tokens=24)
        text = "".join(block.text for block in answer.content if block.type == "text")
        self.assertEqual(text, expected["choices"][0]["message"]["content"] or "")

    def test_tools(self):
        whole = self.ask(tools=[ADD])
        self.assertEqual([block.type for block in whole.content], ["thinking", "tool_use"])
        self.assertEqual((whole.content[0].thinking, whole.content[1].name, whole.content[1].input), (TOOL_THOUGHT, "add", CALL["function"]["arguments"]))
        self.assertEqual(whole.stop_reason, "tool_use")
        final, _ = self.streamed(tools=[ADD])
        self.assertEqual([(block.type, getattr(block, "input", None)) for block in final.content], [("thinking", None), ("tool_use", CALL["function"]["arguments"])])
        self.assertEqual(final.stop_reason, "tool_use")
        said = [block.to_dict() for block in whole.content]
        result = {"type": "tool_result", "tool_use_id": whole.content[1].id}
        call = {"id": whole.content[1].id, "type": "function", "function": {"name": "add", "arguments": '{"x":2}'}}
        before = {"role": "assistant", "content": "", "reasoning_content": TOOL_THOUGHT, "tool_calls": [call]}
        for content in ("4", [{"type": "text", "text": "4"}]):
            answer = self.ask({"role": "assistant", "content": said}, {"role": "user", "content": [result | {"content": content}]}, tools=[ADD], max_tokens=24)
            expected = self.chat(before, {"role": "tool", "tool_call_id": call["id"], "content": "4"}, tools=[TOOL], max_tokens=24)
            text = "".join(block.text for block in answer.content if block.type == "text")
            self.assertEqual(text, expected["choices"][0]["message"]["content"] or "")
            self.assertEqual(answer.usage.output_tokens, expected["usage"]["completion_tokens"])
        for choice in ({"type": "any"}, {"type": "tool", "name": "add"}):
            forced = self.ask(tools=[ADD], tool_choice=choice, thinking={"type": "disabled"})
            self.assertEqual([(block.type, list(block.input)) for block in forced.content], [("tool_use", ["x"])])
        self.assertNotIn("tool_use", [block.type for block in self.ask(tools=[ADD], tool_choice={"type": "none"}).content])

    def test_how_an_answer_ends(self):
        self.assertEqual(self.streamed(max_tokens=100_000, metadata={"user_id": "x"}, extra_body={"context_management": {"edits": []}})[0].content[-1].text, SAID)
        cut = self.ask(max_tokens=3)
        self.assertEqual((cut.stop_reason, cut.usage.output_tokens), ("max_tokens", 3))
        stop = SAID[5:8]
        for stopped in (self.ask(stop_sequences=["nowhere", stop]), self.streamed(stop_sequences=[stop])[0]):
            self.assertEqual((stopped.content[-1].text, stopped.stop_reason, stopped.stop_sequence), (SAID[:5], "stop_sequence", stop))
        quiet = self.ask(thinking={"type": "disabled"}, output_config={"effort": "high"})
        self.assertNotIn("thinking", [block.type for block in quiet.content])
        form = self.ask(output_config={"format": {"type": "json_schema", "schema": FORM}})
        self.assertEqual(list(json.loads(form.content[-1].text)), ["sum"])

    def test_pictures(self):
        for source in (IMAGE, {"type": "image", "source": {"type": "url", "url": data_url(picture())}}):
            answer = self.ask(messages=[{"role": "user", "content": [source, {"type": "text", "text": "What?"}]}], max_tokens=24)
            expected = self.chat(messages=[SYSTEM, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(picture())}}, {"type": "text", "text": "What?"}]}], max_tokens=24)
            self.assertEqual("".join(block.text for block in answer.content if block.type == "text"), expected["choices"][0]["message"]["content"] or "")
            usage = answer.usage
            self.assertEqual(usage.input_tokens + usage.cache_read_input_tokens, expected["usage"]["prompt_tokens"])
        messages = [{"role": "user", "content": [IMAGE, {"type": "text", "text": "What?"}]}]
        self.assertEqual(self.client.messages.count_tokens(model="run", system="Help.", messages=messages).input_tokens, expected["usage"]["prompt_tokens"])

    def test_what_is_refused(self):
        document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
        for words, fields in (("messages[0].content[0]: expected a block of type text, image or tool_result", {"messages": [{"role": "user", "content": [document]}]}),
                              ("mcp_servers: this server calls no others", {"extra_body": {"mcp_servers": []}}),
                              ("stop: in /v1/messages it is stop_sequences", {"extra_body": {"stop": "x"}}),
                              ("tools[0]: expected a tool that the client has", {"tools": [{"type": "bash_20250124", "name": "bash"}]}),
                              ("tool_choice", {"tools": [ADD], "tool_choice": {"type": "some"}}),
                              ("thinking", {"extra_body": {"thinking": {"type": "much"}}}),
                              ("no message before it has a call 'x'", {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "4"}]}]}),
                              ("messages: expected a list of messages", {"messages": []}),
                              ("temperature", {"extra_body": {"temperature": -1}}),
                              ("messages[0].content[0]: images are taken as data URLs only", {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}]}]})):
            with self.subTest(words), self.assertRaises(anthropic.BadRequestError) as caught:
                self.ask(**fields)
            self.assertEqual((caught.exception.body["type"], caught.exception.body["error"]["type"]), ("error", "invalid_request_error"))
            self.assertIn(words, caught.exception.body["error"]["message"])
        with self.assertRaises(anthropic.NotFoundError):
            self.ask(model="other")

    def test_the_token_as_a_key(self):
        (folder / "secret").write_text("secret\n")
        with Server("--token-file", folder / "secret", model="run") as server:
            for key, failure in (("secret", None), ("other", anthropic.AuthenticationError)):
                with client_of(server, api_key=key) as client:
                    if failure:
                        self.assertRaises(failure, client.messages.create, **self.request(max_tokens=2))
                    else:
                        self.assertEqual(client.messages.create(**self.request(max_tokens=2)).usage.output_tokens, 2)
            with client_of(server, api_key=None, auth_token="secret") as client:
                self.assertEqual(client.messages.create(**self.request(max_tokens=2)).usage.output_tokens, 2)


if __name__ == "__main__":
    unittest.main()
