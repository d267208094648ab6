"""Tools that clients offer: a model that was trained on one conversation with a call answers with that call, whole, as a stream, and in both of
OpenAI's forms; what has to be a call is one, whatever the model is.

usage: serve_tools_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels or openai are missing."""
import json
import shutil
import sys
import unittest
from pathlib import Path

try:
    import openai
except ImportError as error:
    print(f"Skipped\nthe package openai is not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

from against_oracle import folder, tool
from byte_tokenizer import tokenizer
from running_server import Server, WithOpenAi, user
from talking_model import train_on

TEMPLATE = Path(__file__).parents[1] / "jinja" / "chat_templates" / "qwen25.jinja"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "maximum": 9, "minimum": 0}},
              "required": ["city", "days"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "forecast", "description": "The weather.", "parameters": PARAMETERS}}
OTHER = {"type": "function", "function": {"name": "now"}}
CALLS = [{"city": "Oslo", "days": 3}, {"city": "Rome", "days": 1}]
SYSTEM = {"role": "system", "content": "Help."}
ASKED, RETURNED, SAID = "Oslo and Rome?", "rain", '{"wear":"a coat"}'
FORM = {"type": "json_schema", "json_schema": {"name": "advice", "schema": {"type": "object", "properties": {"wear": {"type": "string"}}, "required": ["wear"]}}}


def call(number, arguments):
    return {"id": f"call{number:05}", "type": "function", "function": {"name": "forecast", "arguments": arguments}}


def setUpModule():
    calls = [call(number, arguments) for number, arguments in enumerate(CALLS)]
    begun = [SYSTEM, {"role": "user", "content": ASKED}, {"role": "assistant", "tool_calls": calls}]
    returned = [{"role": "tool", "tool_call_id": one["id"], "content": RETURNED} for one in calls]
    talks = [{"messages": begun, "tools": [TOOL]}, {"messages": [*begun, *returned, {"role": "assistant", "content": SAID}], "tools": [TOOL]}]
    train_on(talks, tokenizer(261, ["<tool_call>", "</tool_call>"]), TEMPLATE.read_text(), 261)


class Tools(WithOpenAi, unittest.TestCase):
    options, model = (), "run"

    def ask(self, *messages, **fields):
        return self.client.chat.completions.create(model="run", messages=[SYSTEM, {"role": "user", "content": ASKED}, *messages],
                                                   **({"temperature": 0, "max_tokens": 300, "tools": [TOOL]} | fields))

    def refused(self, **fields):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(**fields)
        return caught.exception.body["message"]

    def test_calls_and_what_comes_of_them(self):
        choice = self.ask().choices[0]
        message = choice.message
        self.assertEqual((choice.finish_reason, message.content, message.role), ("tool_calls", None, "assistant"))
        self.assertEqual([one.function.name for one in message.tool_calls], ["forecast", "forecast"])
        self.assertEqual([json.loads(one.function.arguments) for one in message.tool_calls], CALLS)
        self.assertEqual(len({one.id for one in message.tool_calls}), 2)
        returned = [{"role": "tool", "tool_call_id": one.id, "content": RETURNED} for one in message.tool_calls]
        choice = self.ask(message.model_dump(exclude_none=True), *returned).choices[0]
        self.assertEqual((choice.finish_reason, choice.message.content, choice.message.tool_calls), ("stop", SAID, None))

    def test_beside_a_form(self):
        """The answer is a call, or a text of the form."""
        for form in ({"response_format": FORM}, {"extra_body": {"structured_outputs": {"choice": [SAID, "Nothing."]}}}):
            choice = self.ask(**form).choices[0]
            self.assertEqual((choice.finish_reason, choice.message.content), ("tool_calls", None))
            self.assertEqual([json.loads(one.function.arguments) for one in choice.message.tool_calls], CALLS)
            returned = [{"role": "tool", "tool_call_id": one.id, "content": RETURNED} for one in choice.message.tool_calls]
            choice = self.ask(choice.message.model_dump(exclude_none=True), *returned, **form).choices[0]
            self.assertEqual((choice.finish_reason, choice.message.content, choice.message.tool_calls), ("stop", SAID, None))
        kinds = set()
        for seed in range(12): # whatever it draws, a call where that is what it begins
            choice = self.ask(response_format=FORM, temperature=2, seed=seed, parallel_tool_calls=False, logit_bias={"259": 100 if seed % 2 else -100}).choices[0]
            kinds.add(choice.finish_reason)
            if choice.finish_reason == "tool_calls":
                self.assertEqual([(one.function.name, sorted(json.loads(one.function.arguments))) for one in choice.message.tool_calls], [("forecast", ["city", "days"])])
            elif choice.finish_reason == "stop":
                self.assertEqual(list(json.loads(choice.message.content)), ["wear"])
        self.assertIn("tool_calls", kinds)
        without = self.ask(response_format=FORM, tool_choice="none").choices[0].message
        self.assertIsNone(without.tool_calls)
        flat = {"type": "function"} | TOOL["function"]
        request = {"model": "run", "instructions": SYSTEM["content"], "tools": [flat], "temperature": 0, "max_output_tokens": 300, "input": [{"role": "user", "content": ASKED}],
                   "text": {"format": {"type": "json_schema", "name": "advice", "schema": FORM["json_schema"]["schema"]}}}
        self.assertEqual([json.loads(item.arguments) for item in self.client.responses.create(**request).output], CALLS)
        logprobs = {"include": ["message.output_text.logprobs"]}
        with self.client.responses.stream(**request, **logprobs) as stream:
            added = [event.item.type for event in stream if event.type == "response.output_item.added"]
            self.assertEqual(added, [item.type for item in stream.get_final_response().output])

    def test_a_call_that_is_cut_off(self):
        """The answer that max_tokens ends says so, also where its text is a call already."""
        for parallel in (False, True):
            whole = self.ask(parallel_tool_calls=parallel)
            self.assertEqual(whole.choices[0].finish_reason, "tool_calls")
            for missing in range(1, 6):
                cut = self.ask(parallel_tool_calls=parallel, max_tokens=whole.usage.completion_tokens - missing).choices[0]
                self.assertEqual(cut.finish_reason, "length", missing)

    def test_one_at_a_time(self):
        choice = self.ask(parallel_tool_calls=False).choices[0]
        self.assertEqual((choice.finish_reason, [json.loads(one.function.arguments) for one in choice.message.tool_calls]), ("tool_calls", CALLS[:1]))

    def test_a_stream(self):
        calls, texts, finish, roles = {}, "", None, []
        for chunk in self.ask(stream=True):
            delta = chunk.choices[0].delta
            roles += [delta.role] if delta.role else []
            texts += delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
            for one in delta.tool_calls or []:
                kept = calls.setdefault(one.index, {"id": one.id, "name": one.function.name, "arguments": ""})
                kept["arguments"] += one.function.arguments
        self.assertEqual((texts, finish, roles, sorted(calls)), ("", "tool_calls", ["assistant"], [0, 1]))
        self.assertEqual([json.loads(one["arguments"]) for one in calls.values()], CALLS)

    def test_responses(self):
        flat = {"type": "function"} | TOOL["function"]
        request = {"model": "run", "instructions": SYSTEM["content"], "tools": [flat], "temperature": 0, "max_output_tokens": 300}
        asked = [{"role": "user", "content": ASKED}]
        whole = self.client.responses.create(input=asked, **request)
        self.assertEqual([(item.type, item.name, json.loads(item.arguments)) for item in whole.output],
                         [("function_call", "forecast", arguments) for arguments in CALLS])
        with self.client.responses.stream(input=asked, **request) as stream:
            kinds = [event.type for event in stream]
            last = stream.get_final_response()
        self.assertEqual([json.loads(item.arguments) for item in last.output], CALLS)
        self.assertEqual((kinds[0], kinds.count("response.function_call_arguments.done"), kinds[-1]), ("response.created", 2, "response.completed"))
        results = [{"type": "function_call_output", "call_id": item.call_id, "output": RETURNED} for item in whole.output]
        again = self.client.responses.create(input=[*asked, *[item.model_dump(exclude_none=True) for item in whole.output], *results], **request)
        self.assertEqual((again.output_text, again.status), (SAID, "completed"))

    def test_what_has_to_be_called(self):
        named = {"type": "function", "function": {"name": "forecast"}}
        for choice, count in ((named, 1), ("required", 1)):
            for temperature in (0, 1):
                with self.subTest(f"{choice}, {temperature}"):
                    answer = self.ask(tools=[OTHER, TOOL], tool_choice=choice, temperature=temperature, seed=4).choices[0]
                    self.assertEqual((answer.finish_reason, answer.message.content, len(answer.message.tool_calls)), ("tool_calls", None, count))
                    function = answer.message.tool_calls[0].function
                    arguments = json.loads(function.arguments)
                    self.assertIn(function.name, ("forecast",) if choice is named else ("forecast", "now"))
                    self.assertEqual(sorted(arguments), ["city", "days"] if function.name == "forecast" else [])
        cut = self.ask(tool_choice=named, max_tokens=3).choices[0]
        self.assertEqual((cut.finish_reason, len(cut.message.tool_calls)), ("length", 1))

    def test_schemas_that_refer_to_themselves(self):
        parameters = {"type": "object", "properties": {"at": {"$ref": "#/$defs/At"}}, "required": ["at"],
                      "$defs": {"At": {"type": "object", "properties": {"x": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["x"]}}}
        tools = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in ("go", "stay")]
        for offered in (tools[:1], tools):
            function = self.ask(tools=offered, tool_choice="required").choices[0].message.tool_calls[0].function
            self.assertIn(json.loads(function.arguments)["at"]["x"], range(10))

    def test_none(self):
        without = self.ask(tools=openai.NOT_GIVEN).choices[0].message
        none = self.ask(tool_choice="none").choices[0].message
        self.assertEqual((none.content, none.tool_calls), (without.content, None))

    def test_refusals(self):
        self.assertIn("tools are of type function, not \"web_search\"", self.refused(tools=[{"type": "web_search"}]))
        self.assertIn('expected {"type": "function", "function": {"name"', self.refused(tools=[{"type": "function"}]))
        self.assertIn("there is no tool 'then'", self.refused(tool_choice={"type": "function", "function": {"name": "then"}}))
        self.assertIn('expected "auto", "none", "required"', self.refused(tool_choice="always"))
        self.assertIn("the request has no tools", self.refused(tools=[], tool_choice="required"))
        self.assertIn("no other form besides", self.refused(tool_choice="required", response_format={"type": "json_object"}))
        self.assertIn("at most 128 tools", self.refused(tools=[OTHER] * 129))
        for calls, said in (([{"id": "a"}], "tool_calls[0]: expected"), ([call(1, "{")], "arguments: expected a JSON object")):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.ask({"role": "assistant", "tool_calls": calls}, {"role": "tool", "tool_call_id": "a", "content": "b"})
            self.assertIn(said, caught.exception.body["message"])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask({"role": "assistant", "content": "c"}, {"role": "tool", "tool_call_id": "gone", "content": "b"})
        self.assertIn("has a call 'gone'", caught.exception.body["message"])

    def test_prompts_keep_the_order_of_keys(self):
        """As transformers writes tools and what was called, with all digits."""
        parameters = {"required": ["z"], "properties": {"z": {"maximum": 10, "type": "integer"}, "a": {"description": "A.", "type": "string"}}, "type": "object"}
        tool = {"type": "function", "function": {"parameters": parameters, "name": "f", "description": "F."}}
        arguments = '{"z": 18446744073709551616, "name": 9223372036854775808, "a": [1.5, "b"]}'
        called = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}]}
        messages = [SYSTEM, {"role": "user", "content": ASKED}, called, {"role": "tool", "tool_call_id": "a", "content": "b"}]
        with Server(model="run") as server:
            def sent(path, fields):
                status, text, _ = server.send(path, fields)
                self.assertEqual(status, 200, text)
                return json.loads(text)
            prompt = sent("/detokenize", sent("/tokenize", {"messages": messages, "tools": [tool]}))["prompt"]
        self.assertIn(json.dumps(tool), prompt)
        self.assertIn('{"name": "f", "arguments": ' + arguments + "}", prompt)

    def test_a_template_that_calls_none(self):
        tool("make-tiny", "model", "gqa", folder / "gqa", "--seed", "1")
        with Server("--image-size", 28) as server:
            status, text, _ = server.send("/v1/chat/completions", {"messages": [user(ASKED)], "tools": [TOOL]})
        self.assertEqual(status, 400)
        self.assertIn("chat template calls no tools", json.loads(text)["error"]["message"])

    def test_calls_of_several_tokens_do_not_go_with_a_form(self):
        several = folder / "several"
        shutil.copytree(folder / "run", several)
        for file in several.rglob("tokenizer.json"):
            file.write_text(tokenizer(261))
        with Server(model="several") as server:
            for fields, expected in (({"response_format": FORM}, 400), ({}, 200), ({"response_format": FORM, "tool_choice": "required"}, 400), ({"response_format": FORM, "tool_choice": "none"}, 200)):
                status, text, _ = server.send("/v1/chat/completions", {"messages": [user(ASKED)], "tools": [TOOL], "max_tokens": 3} | fields)
                self.assertEqual(status, expected, text)
                if "tool_choice" not in fields and fields:
                    self.assertIn("tools: beside a form of the answer (response_format", json.loads(text)["error"]["message"])


GLM = """{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}
{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v if v is string else v | tojson }}</arg_value>
{% endfor %}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"""
LFM = GLM.replace("<tool_call>", "<|tool_call_start|>[").replace("</tool_call>", ")]<|tool_call_end|>").replace(
    "}}\n{% for k", "}}({% for k").replace("<arg_key>{{ k }}</arg_key>\n<arg_value>", "{{ k }}=").replace("</arg_value>\n", "")


class Forms(unittest.TestCase):
    """The same model behind templates that write calls in other forms, whose answers are given texts."""

    @staticmethod
    def served(name, template, *tags):
        model = folder / name
        shutil.copytree(folder / "run", model)
        for file in model.rglob("tokenizer_config.json"):
            file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
        for file in model.rglob("tokenizer.json"):
            file.write_text(tokenizer(261, tags))
        return Server(model=name)

    def answered(self, server, text, **fields):
        """How it finished, its text and its calls."""
        request = {"messages": [user(ASKED)], "tools": [TOOL, OTHER], "max_tokens": 300, "structured_outputs": {"choice": [text]}, "logit_bias": {"259": -100}} | fields
        status, body, _ = server.send("/v1/chat/completions", request)
        self.assertEqual(status, 200, body)
        choice = json.loads(body)["choices"][0]
        message = choice["message"]
        return choice["finish_reason"], message["content"], [(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls", [])]

    def test_hermes(self):
        with self.served("hermes", TEMPLATE.read_text(), "<tool_call>", "</tool_call>") as server:
            for text in ("<tool_call>now</tool_call>", "<tool_call>\nnow\n", "<tool_call>now<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"):
                self.assertEqual(self.answered(server, text), ("stop", text, []))
            numbers = '{"city":12345678901234567890123,"days":9007199254740993,"share":0.10000000000000000001}'
            text = f'<tool_call>\n{{"name": "forecast", "arguments": {numbers}}}\n</tool_call>'
            self.assertEqual(self.answered(server, text), ("tool_calls", None, [("forecast", numbers)]))

    def test_glm(self):
        text = "<tool_call>forecast\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>36893488147419103232</arg_value>\n</tool_call>"
        with self.served("glm", GLM, "<tool_call>", "</tool_call>") as server:
            self.assertEqual(self.answered(server, text), ("tool_calls", None, [("forecast", '{"city":"Oslo","days":36893488147419103232}')]))
            self.assertEqual(self.answered(server, "<tool_call>now</tool_call>"), ("tool_calls", None, [("now", "{}")]))
            for parallel in (True, False):
                for length in (14, text.find("\n"), text.find("<arg_value>"), text.find("\n<arg_key>days"), text.find("</tool_call>"), len(text) - 1):
                    self.assertEqual(self.answered(server, text, max_tokens=length, parallel_tool_calls=parallel), ("length", text[:length], []))

    def test_python(self):
        text = r"""<|tool_call_start|>[forecast(city="a\tb\n\x41\u00e9 \\n \'\d", days=36893488147419103232)]<|tool_call_end|>"""
        with self.served("lfm", LFM, "<|tool_call_start|>", "<|tool_call_end|>") as server:
            finish, content, calls = self.answered(server, text)
        self.assertEqual((finish, content), ("tool_calls", None))
        self.assertEqual([(name, json.loads(arguments)) for name, arguments in calls], [("forecast", {"city": "a\tb\nA\u00e9 \\n '\\d", "days": 36893488147419103232})])


if __name__ == "__main__":
    unittest.main()
