"""Models that think: one that was trained on a conversation with thoughts answers with them, apart from what it says, whole, as a stream and in both
of OpenAI's forms; with tools, forms, stop texts and log-probabilities, which concern what it says alone.

usage: serve_thoughts_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels or openai are missing."""
import json
import os
import pty
import re
import subprocess
import sys
import unittest

try:
    import openai
except ImportError as error:
    print(f"Skipped\nthe package openai is not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

from against_oracle import engine, folder
from running_server import WithOpenAi, events
from thinking_model import ASKED, CALL, HIDDEN, SAID, SYSTEM, THOUGHT, TOOL, TOOL_THOUGHT, make_model
from transformers import PreTrainedTokenizerFast

PATH = "/v1/chat/completions"
TAGGED = len(f"<think>\n{THOUGHT}\n</think>") - len("<think></think>") + 2  # tokens, of which each tag is one
EMPTY = len("\n\n" "\n\n") + 2  # of a block without thoughts, and the line breaks behind it
OFF = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["sum"], "additionalProperties": False}
FORM = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}


def setUpModule():
    make_model()


class Asked(WithOpenAi, unittest.TestCase):
    options, model = (), "run"

    def ask(self, *messages, **fields):
        return self.client.chat.completions.create(model="run", messages=[SYSTEM, {"role": "user", "content": ASKED}, *messages],
                                                   **({"temperature": 0, "max_tokens": 200} | fields))

    def answer(self, *messages, **fields):
        """Thoughts, text and reason of the end."""
        choice = self.ask(*messages, **fields).choices[0]
        return getattr(choice.message, "reasoning_content", None), choice.message.content, choice.finish_reason

    def gathered(self, **fields):
        """The same of a stream, whose thoughts come first, by the number of the answer."""
        found = {}
        for chunk in self.ask(stream=True, **fields):
            for choice in chunk.choices:
                kept = found.setdefault(choice.index, {"roles": [], "thoughts": [], "text": "", "finish": None})
                delta = choice.delta
                kept["roles"] += [delta.role] if delta.role else []
                if getattr(delta, "reasoning_content", None):
                    self.assertEqual(delta.reasoning_content, delta.reasoning)
                    self.assertEqual((kept["text"], delta.content), ("", None))
                    kept["thoughts"].append(delta.reasoning_content)
                kept["text"] += delta.content or ""
                kept["finish"] = choice.finish_reason or kept["finish"]
        return found


class Thoughts(Asked):
    def test_stand_apart_from_the_answer(self):
        whole = self.ask()
        message = whole.choices[0].message
        self.assertEqual((message.reasoning_content, message.reasoning, message.content), (THOUGHT, THOUGHT, SAID))
        self.assertEqual(whole.choices[0].finish_reason, "stop")
        self.assertEqual(whole.usage.completion_tokens_details.reasoning_tokens, TAGGED)
        self.assertEqual(whole.usage.completion_tokens, TAGGED + len("\n\n" + SAID) + 1)

    def test_are_streamed(self):
        for count in (1, 2):
            answers = self.gathered(n=count)
            self.assertEqual(sorted(answers), list(range(count)))
            for kept in answers.values():
                self.assertGreater(len(kept["thoughts"]), 3)
                self.assertEqual(("".join(kept["thoughts"]), kept["text"], kept["finish"], kept["roles"]), (THOUGHT, SAID, "stop", ["assistant"]))
        *_, last = self.ask(stream=True, stream_options={"include_usage": True})
        self.assertEqual(last.usage.completion_tokens_details.reasoning_tokens, TAGGED)

    def test_of_several_answers(self):
        several = self.ask(n=2)
        self.assertEqual([(choice.message.reasoning, choice.message.content) for choice in several.choices], [(THOUGHT, SAID)] * 2)
        self.assertEqual(several.usage.completion_tokens_details.reasoning_tokens, 2 * TAGGED)

    def test_may_be_cut_off(self):
        whole = self.ask(max_tokens=8)
        message = whole.choices[0].message
        self.assertEqual((message.reasoning_content, message.content, whole.choices[0].finish_reason), (THOUGHT[:6].rstrip(), "", "length"))
        self.assertEqual(whole.usage.completion_tokens_details.reasoning_tokens, 8)
        kept = self.gathered(max_tokens=8)[0]
        self.assertEqual(("".join(kept["thoughts"]), kept["text"], kept["finish"]), (THOUGHT[:6].rstrip(), "", "length"))
        self.assertEqual(self.answer(max_tokens=TAGGED), (THOUGHT, "", "length"))
        self.assertEqual(self.answer(max_tokens=TAGGED + 4), (THOUGHT, SAID[:2], "length"))

    def test_hold_no_stop_text(self):
        self.assertIn("4", THOUGHT)
        self.assertEqual(self.answer(stop=["4", THOUGHT[:3]]), (THOUGHT, SAID, "stop"))
        self.assertEqual(self.answer(stop=["\n", "think"]), (THOUGHT, SAID, "stop"))
        self.assertEqual(self.answer(stop=[SAID[2:4]]), (THOUGHT, SAID[:2], "stop"))
        kept = self.gathered(stop=[THOUGHT[:3], SAID[2:4]])[0]
        self.assertEqual(("".join(kept["thoughts"]), kept["text"]), (THOUGHT, SAID[:2]))

    def test_have_no_log_probabilities(self):
        tokens = self.ask(logprobs=True, top_logprobs=1).choices[0].logprobs.content
        self.assertEqual("".join(token.token for token in tokens), SAID)
        streamed = [token for chunk in self.ask(stream=True, logprobs=True) for choice in chunk.choices if choice.logprobs for token in choice.logprobs.content]
        self.assertEqual([token.token for token in streamed], [token.token for token in tokens])
        self.assertEqual(self.ask(logprobs=True, max_tokens=8).choices[0].logprobs.content, [])

    def test_are_turned_off(self):
        off = self.answer(**OFF)
        self.assertIsNone(off[0])
        self.assertNotEqual(off[1], SAID, "the prompt is another one")
        usage = self.ask(**OFF).usage
        self.assertEqual(usage.completion_tokens_details.reasoning_tokens, 0)
        self.assertEqual(usage.prompt_tokens - self.ask().usage.prompt_tokens, EMPTY, "the template writes an empty block")
        for effort in ("none", "minimal"):
            self.assertEqual(self.answer(reasoning_effort=effort), off)
        for effort in ("low", "high"):
            self.assertEqual(self.answer(reasoning_effort=effort), (THOUGHT, SAID, "stop"))
        self.assertEqual(self.answer(reasoning_effort="high", **OFF), off, "a variable of the template's own goes before the effort")
        self.assertEqual(self.gathered(**OFF)[0]["thoughts"], [])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(reasoning_effort="much")
        self.assertIn("reasoning_effort: expected none, minimal, low", caught.exception.body["message"])
        self.assertEqual(self.client.models.retrieve("run").model_extra["fvlm"]["thinking"], {"variable": "enable_thinking", "default": True})

    def test_are_left_out_where_asked(self):
        self.assertEqual(self.answer(extra_body={"include_reasoning": False}), (None, SAID, "stop"))
        kept = self.gathered(extra_body={"include_reasoning": False})[0]
        self.assertEqual((kept["thoughts"], kept["text"]), ([], SAID))

    def test_of_earlier_answers_reach_the_template(self):
        called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        returned = {"role": "tool", "tool_call_id": CALL["id"], "content": HIDDEN}
        for name in ("reasoning_content", "reasoning"):
            messages = [{"role": "user", "content": ASKED}, called | {name: "Ask a tool."}, returned]
            tokens = json.loads(self.server.send("/tokenize", {"messages": messages, "tools": [TOOL]})[1])["tokens"]
            text = json.loads(self.server.send("/detokenize", {"tokens": tokens})[1])["prompt"]
            self.assertIn("<think>\nAsk a tool.\n</think>\n\n<tool_call>", text)
        status, text, _ = self.server.send(PATH, {"messages": [{"role": "assistant", "content": "", "reasoning": 3}]})
        self.assertEqual(status, 400)
        self.assertIn("messages[0].reasoning: expected a string", text)

    def test_of_the_template_with_tools_are_transformers(self):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "decoder")
        called = {"role": "assistant", "content": "", "reasoning_content": TOOL_THOUGHT, "tool_calls": [CALL]}
        talk = [SYSTEM, {"role": "user", "content": ASKED}, called, {"role": "tool", "tool_call_id": CALL["id"], "content": HIDDEN}]
        for messages, tools, words in ((talk[:2], None, "Help.<|im_end|>"), (talk[:2], [TOOL], "# Functions"), (talk, [TOOL], f"<think>\n{TOOL_THOUGHT}\n</think>")):
            expected = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
            self.assertIn(words, expected)
            status, text, _ = self.server.send("/tokenize", {"messages": messages} | ({"tools": tools} if tools else {}))
            self.assertEqual(status, 200, text)
            self.assertEqual(json.loads(text)["tokens"], tokenizer(expected, add_special_tokens=False)["input_ids"])

    def test_stand_before_calls(self):
        choice = self.ask(tools=[TOOL]).choices[0]
        self.assertEqual((choice.message.reasoning, choice.message.content, choice.finish_reason), (TOOL_THOUGHT, None, "tool_calls"))
        self.assertEqual(choice.message.tool_calls[0].function.name, TOOL["function"]["name"])
        deltas = [chunk.choices[0].delta for chunk in self.ask(tools=[TOOL], stream=True)]
        self.assertEqual("".join(getattr(delta, "reasoning", None) or "" for delta in deltas), TOOL_THOUGHT)
        self.assertEqual([delta.tool_calls[0].index for delta in deltas if delta.tool_calls], [0])
        returned = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": HIDDEN}
        self.assertEqual(len(self.ask(choice.message.model_dump(exclude_none=True), returned, tools=[TOOL], max_tokens=2).choices), 1)

    def test_stand_before_forms(self):
        for fields in ({}, {"temperature": 0.5, "seed": 3}):
            thoughts, text, finish = self.answer(response_format=FORM, **fields)
            self.assertEqual((thoughts, list(json.loads(text)), finish), (THOUGHT, ["sum"], "stop"))
        off = self.answer(response_format=FORM, **OFF)
        self.assertEqual((off[0], list(json.loads(off[1])), off[2]), (None, ["sum"], "stop"))
        self.assertEqual(self.answer(extra_body={"structured_outputs": {"choice": ["two", "six"]}})[1] in ("two", "six"), True)
        named = self.ask(tools=[TOOL], tool_choice="required").choices[0]
        self.assertEqual((named.message.reasoning, named.finish_reason, len(named.message.tool_calls)), (TOOL_THOUGHT, "tool_calls", 1))
        cut = self.ask(tools=[TOOL], tool_choice="required", max_tokens=5).choices[0]
        self.assertEqual((cut.finish_reason, cut.message.tool_calls, cut.message.content), ("length", None, ""))

    def test_of_clients_that_leave_hold_nothing(self):
        stream = self.ask(stream=True, max_tokens=1000, extra_body={"ignore_eos": True})
        self.assertTrue(next(iter(stream)).choices[0].delta.reasoning)
        stream.close()
        self.server.wait_for(requests_running=0, requests_waiting=0, requests_abandoned_total=1)
        self.assertEqual(self.answer(), (THOUGHT, SAID, "stop"))


class Responses(Asked):
    def respond(self, asked=ASKED, **fields):
        return self.client.responses.create(model="run", input=asked, **({"instructions": SYSTEM["content"], "temperature": 0, "max_output_tokens": 200} | fields))

    def test_have_an_item_of_thoughts(self):
        whole = self.respond()
        self.assertEqual([item.type for item in whole.output], ["reasoning", "message"])
        self.assertEqual(([part.text for part in whole.output[0].content], whole.output_text), ([THOUGHT], SAID))
        self.assertEqual((whole.output[0].summary, whole.output[0].status, whole.status), ([], "completed", "completed"))
        self.assertEqual(whole.usage.output_tokens_details.reasoning_tokens, TAGGED)
        self.assertIsNone(whole.reasoning.effort)
        off = self.respond(reasoning={"effort": "none"})
        self.assertEqual(([item.type for item in off.output], off.reasoning.effort), (["message"], "none"))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.respond(reasoning={"effort": "much"})
        self.assertIn("reasoning.effort: expected none", caught.exception.body["message"])

    def test_may_end_within_them(self):
        cut = self.respond(max_output_tokens=8)
        self.assertEqual([(item.type, item.status) for item in cut.output], [("reasoning", "incomplete")])
        self.assertEqual((cut.status, cut.incomplete_details.reason, cut.output_text), ("incomplete", "max_output_tokens", ""))
        *_, text, part, item, last = self.respond(max_output_tokens=8, stream=True)
        self.assertEqual((text.text, part.part.text, item.item.status, last.type), (THOUGHT[:6], THOUGHT[:6], "incomplete", "response.incomplete"))
        self.assertEqual(last.response.output[0].content[0].text, THOUGHT[:6])

    def test_are_streamed(self):
        with self.client.responses.stream(model="run", input=ASKED, instructions=SYSTEM["content"], temperature=0) as stream:
            happened = list(stream)
            last = stream.get_final_response()
        kinds = list(dict.fromkeys(event.type for event in happened))
        self.assertEqual([kind.removeprefix("response.") for kind in kinds],
                         ["created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
                          "content_part.done", "output_item.done", "output_text.delta", "output_text.done", "completed"])
        self.assertEqual([event.sequence_number for event in happened], list(range(len(happened))))
        thoughts = [event for event in happened if event.type == "response.reasoning_text.delta"]
        self.assertEqual(("".join(event.delta for event in thoughts), {event.output_index for event in thoughts}), (THOUGHT, {0}))
        self.assertEqual({event.output_index for event in happened if event.type == "response.output_text.delta"}, {1})
        self.assertEqual({event.item_id for event in thoughts}, {last.output[0].id})
        self.assertEqual((last.output[0].content[0].text, last.output_text), (THOUGHT, SAID))

    def test_are_left_out_of_responses_where_asked(self):
        without = {"extra_body": {"include_reasoning": False}}
        whole = self.respond(**without)
        self.assertEqual(([item.type for item in whole.output], whole.output_text), (["message"], SAID))
        self.assertEqual(whole.usage.output_tokens_details.reasoning_tokens, TAGGED)
        self.assertFalse([event.type for event in self.respond(stream=True, **without) if "reasoning" in event.type])
        cut = self.respond(max_output_tokens=8, **without)
        self.assertEqual((cut.status, cut.output_text), ("incomplete", ""))

    def test_go_before_calls_and_back(self):
        flat = {"type": "function"} | TOOL["function"]
        asked = [{"role": "user", "content": ASKED}]
        whole = self.respond(asked, tools=[flat])
        self.assertEqual([item.type for item in whole.output], ["reasoning", "function_call"])
        places = {event.item.type: event.output_index for event in self.respond(asked, tools=[flat], stream=True) if event.type == "response.output_item.done"}
        self.assertEqual(places, {"reasoning": 0, "function_call": 1})
        result = {"type": "function_call_output", "call_id": whole.output[1].call_id, "output": HIDDEN}
        items = [item.model_dump(exclude_none=True) for item in whole.output]
        counts = [self.respond([*asked, *given, result], tools=[flat], max_output_tokens=1).usage.input_tokens for given in (items, items[1:])]
        self.assertEqual(counts[0] - counts[1], EMPTY + len(TOOL_THOUGHT), "the template gets the thoughts")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.respond([items[0] | {"content": 3}, *asked])
        self.assertIn("input[0].content: expected a list", caught.exception.body["message"])


class OpenedByThePrompt(Asked):
    """The template's generation prompt ends within thoughts, as that of Qwen3.5 does."""
    options = ("--chat-template", "open")

    def test_answers_are_the_same(self):
        whole = self.ask()
        message = whole.choices[0].message
        self.assertEqual((message.reasoning, message.content, whole.choices[0].finish_reason), (THOUGHT, SAID, "stop"))
        self.assertEqual(whole.usage.completion_tokens_details.reasoning_tokens, TAGGED - 2, "less the tag and the line break of the prompt")
        kept = self.gathered(stop=[THOUGHT[:3]])[0]
        self.assertEqual(("".join(kept["thoughts"]), kept["text"], kept["finish"]), (THOUGHT, SAID, "stop"))
        self.assertEqual(self.answer(max_tokens=1), (THOUGHT[:1], "", "length"))
        self.assertIsNone(self.answer(**OFF)[0])
        self.assertEqual(list(json.loads(self.answer(response_format=FORM)[1])), ["sum"])

    def test_a_stream_begins_with_them(self):
        status, body, _ = self.server.send(PATH, {"messages": [SYSTEM, {"role": "user", "content": ASKED}], "stream": True, "temperature": 0})
        first = events(body)[0][0]["choices"][0]["delta"]
        self.assertEqual((status, first), (200, {"role": "assistant", "content": None, "reasoning": THOUGHT[:1], "reasoning_content": THOUGHT[:1]}))


class Chat(unittest.TestCase):
    """`chat`: thoughts are dimmed on a terminal, and left out where a script reads the answers."""
    command = [str(word) for word in (engine, "chat", folder / "run", "--system", SYSTEM["content"])]

    def chat(self, *lines):
        result = subprocess.run(self.command, input="\n".join(lines) + "\n", capture_output=True, text=True)
        return result.stdout, result.stderr

    def test_a_script_reads_answers_alone(self):
        self.assertEqual(self.chat(ASKED)[0], SAID + "\n")
        printed, _ = self.chat("/settings thinking off", ASKED)
        self.assertIn(", thinking off\n", printed)
        self.assertNotIn(SAID, printed, "the prompt is another one")
        self.assertIn("thinking is on or off, not 'much'", self.chat("/settings thinking much")[1])

    def test_a_terminal_shows_thoughts(self):
        keyboard, terminal = pty.openpty()
        environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "dumb"}
        process = subprocess.Popen(self.command, stdin=terminal, stdout=terminal, stderr=subprocess.DEVNULL, env=environment)
        os.close(terminal)
        os.write(keyboard, f"{ASKED}\n".encode())
        seen = ""
        while " new tokens in " not in seen:
            seen += os.read(keyboard, 65536).decode()
        os.write(keyboard, b"/quit\n")
        self.assertEqual(process.wait(timeout=1800), 0)
        os.close(keyboard)
        plain = re.sub("\x1b\\[[0-9]*m", "", seen).replace("\r", "")
        self.assertIn(f"{THOUGHT}\n\n{SAID}\n", plain)


if __name__ == "__main__":
    unittest.main()
