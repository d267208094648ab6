"""Answers of a given form: JSON by a schema, texts that match a regular expression, a choice of texts, texts of a grammar, by `serve` and `generate`. The model's weights are
random, so that nothing but the form makes it write them. What a regular expression has is what Python's re.fullmatch() says.

usage: serve_forms_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels or openai are missing."""
import ast
import concurrent.futures
import json
import re
import sys
import unittest
from typing import Annotated, Literal, Optional, Union

import forked_program

try:
    import openai
    import pydantic
except ImportError as error:
    print(f"Skipped\nthe package openai is not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

from against_oracle import engine, folder, tool
from running_server import Server, WithOpenAi, picture, user, with_image


class Corner(pydantic.BaseModel):
    x: int
    y: int


class Shape(pydantic.BaseModel):
    """Lists and texts are short, since a random model would not end them."""
    kind: Literal["circle", "square"]
    name: str = pydantic.Field(max_length=6)
    corners: list[Corner] = pydantic.Field(max_length=2)
    filled: bool
    parent: Optional[Corner]


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    age: int = pydantic.Field(ge=0, lt=30)


class Ball(pydantic.BaseModel):
    kind: Literal["ball"]
    color: str = pydantic.Field(pattern="^#[0-9a-f]{6}$")
    weight: float = pydantic.Field(gt=0, le=2.5)


class Found(pydantic.BaseModel):
    thing: Annotated[Union[Cat, Ball], pydantic.Field(discriminator="kind")]
    sure: float = pydantic.Field(ge=0, le=1)


PATTERNS = [r"\d{3}-\d{4}", r"(yes|no|may\s?be)( indeed)?", r"[A-Z][a-z]{2,8}( [A-Z][a-z]{1,3}){0,2}", r'"[^"\\]{0,8}"', r"[^\s,]{1,6}(, ?[^\s,]{1,6}){1,3}",
            r"(\+|-)?\d{1,4}(\.\d{1,3})?", r"\w{1,5}@\w{1,5}\.(com|org)", r".{2,12}", r"äö?ü|[éß-]{2}x", r'\{"a": \[\d(, \d){0,2}\]\}', r"^(a|bc){2,5}d?\n\S\t\D$",
            r"<b>[^<>\W]*?</b>", r"\W{1,4}\\", r"[\[\]-]{2}"]


def has_pairs(text):
    """Whether it is nothing but brackets within each other and small letters in them."""
    while (shorter := re.sub(r"\[[a-z.]*\]", ".", text)) != text:
        text = shorter
    return text == "."


def is_sum(text):
    try:
        return isinstance(eval(compile(ast.parse(text, mode="eval"), "sum", "eval"), {"__builtins__": {}}), int) and " " not in text
    except SyntaxError:
        return False


def is_list(text):
    try:
        return isinstance(json.loads(text), list)
    except ValueError:
        return False


# Texts are short, since a random model would not end them.
GRAMMARS = {
    "brackets": ('root ::= "[" (root | [a-z]{1,2}){0,2} "]" # in each other', has_pairs),
    "sums": ('root ::= value ([-+*] value){1,3}\nvalue ::= [1-9] [0-9]{0,2}\n  | "(" value [-+] value ")"', is_sum),
    "json": ('root ::= "[" (value ("," " "? value){0,2})? "]"\nvalue ::= root | "\\"" [^"\\\\\\x00-\\x1f]{0,5} "\\"" | [1-9] [0-9]{0,3} | "true" | "null"', is_list),
    "letters": ('root ::= [ぁ-ゟ]{1,3} (end | [^\\x00-\\u07ff]{1,2})\nend ::= ""', lambda text: re.fullmatch("[ぁ-ゟ]{1,3}[^\0-\u07ff]{0,2}", text)),
}


def form(model):
    return {"type": "json_schema", "json_schema": {"name": model.__name__, "schema": model.model_json_schema()}}


def generate(*options, code=0):
    options = options or ("--json-schema", folder / "schema.json")
    command = [engine, "generate", folder / "gqa", "--prompt", "Describe it.", "--max-tokens", "600", "--json", *options]
    result = forked_program.run(command)
    assert result.returncode == code, result.stderr
    return result.stderr if code else json.loads(result.stdout)


def setUpModule():
    tool("make-tiny", "model", "gqa", folder / "gqa", "--seed", "1")
    config = folder / "gqa" / "decoder" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 2048}))


class Forms(WithOpenAi, unittest.TestCase):
    def ask(self, message=None, **fields):
        settings = {"model": "gqa", "messages": [message or user("Describe it.")], "max_tokens": 600, "temperature": 1}
        return self.client.chat.completions.create(**settings | fields)

    def test_a_schema_beside_the_type_of_any_object(self):
        """As llama.cpp, Together and Fireworks have it."""
        with_schema = {"type": "json_object", "schema": Cat.model_json_schema()}
        Cat.model_validate_json(self.ask(response_format=with_schema, seed=3).choices[0].message.content)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(response_format={"type": "json_object", "schema": {"type": "cat"}})
        self.assertIn("response_format: the schema", caught.exception.body["message"])

    def test_answers_fit_the_schema(self):
        names = set()
        for seed in range(8):
            choice = self.ask(with_image("What is it?", picture()), response_format=form(Shape), seed=seed, max_tokens=600).choices[0]
            self.assertEqual(choice.finish_reason, "stop", choice.message.content)
            names.add(Shape.model_validate_json(choice.message.content, strict=True).name)
            self.assertEqual(list(json.loads(choice.message.content)), ["kind", "name", "corners", "filled", "parent"])
        self.assertGreater(len(names), 4)

    def test_numbers_and_texts_are_within_bounds(self):
        kinds = set()
        for seed in range(12):
            choice = self.ask(response_format=form(Found), seed=seed).choices[0]
            self.assertEqual(choice.finish_reason, "stop", choice.message.content)
            kinds.add(Found.model_validate_json(choice.message.content).thing.kind)
        self.assertEqual(kinds, {"cat", "ball"})

    def test_openai_parses_answers_into_a_model(self):
        parsed = self.client.chat.completions.parse(model="gqa", messages=[user("Hi")], temperature=0, max_tokens=600, response_format=Corner)
        self.assertIsInstance(parsed.choices[0].message.parsed, Corner)

    def test_streams_and_several_answers_have_the_form(self):
        settings = {"response_format": form(Corner), "seed": 3}
        whole = self.ask(n=3, **settings)
        texts = [choice.message.content for choice in whole.choices]
        self.assertEqual(len(set(texts)), 3)
        for text in texts:
            Corner.model_validate_json(text, strict=True)
        pieces = [part.choices[0].delta.content or "" for part in self.ask(stream=True, **settings) if part.choices]
        self.assertEqual("".join(pieces), texts[0])

    def test_any_object_and_choices(self):
        texts = [self.ask(response_format={"type": "json_object"}, seed=seed, max_tokens=40).choices[0] for seed in range(12)]
        for choice in texts:
            self.assertTrue(choice.message.content.startswith("{"))
            if choice.finish_reason == "stop":
                self.assertIsInstance(json.loads(choice.message.content), dict)
        self.assertIn("stop", [choice.finish_reason for choice in texts])
        wanted = ["a cat", "a dog", "neither"]
        chosen = {self.ask(extra_body={"structured_outputs": {"choice": wanted}}, seed=seed).choices[0].message.content for seed in range(20)}
        self.assertLessEqual(chosen, set(wanted))
        self.assertGreater(len(chosen), 1)
        continued = self.client.completions.create(model="gqa", prompt="It is", max_tokens=60, extra_body={"structured_outputs": {"choice": wanted}})
        self.assertIn(continued.choices[0].text, wanted)

    def test_answers_match_a_regular_expression(self):
        def ask(pattern, seed):
            return self.ask(extra_body={"structured_outputs": {"regex": pattern}}, seed=seed, max_tokens=80, n=4).choices

        with concurrent.futures.ThreadPoolExecutor(8) as clients:
            asked = {pattern: [clients.submit(ask, pattern, seed) for seed in range(4)] for pattern in PATTERNS}
            for pattern, waiting in asked.items():
                ended = [choice.message.content for one in waiting for choice in one.result() if choice.finish_reason == "stop"]
                with self.subTest(pattern):
                    self.assertGreater(len(ended), 4)
                    self.assertGreater(len(set(ended)), 1)
                    for text in ended:
                        self.assertTrue(re.fullmatch(pattern, text), repr(text))

    def test_answers_are_of_a_grammar(self):
        def ask(text, seed):
            return self.ask(extra_body={"structured_outputs": {"grammar": text}}, seed=seed, max_tokens=100, n=4).choices

        for name, (text, is_right) in GRAMMARS.items():
            ended = [choice.message.content for seed in range(4) for choice in ask(text, seed) if choice.finish_reason == "stop"]
            with self.subTest(name):
                self.assertGreater(len(ended), 4)
                self.assertGreater(len(set(ended)), 1)
                for answer in ended:
                    self.assertTrue(is_right(answer), repr(answer))
        text = GRAMMARS["brackets"][0]
        same = [self.ask(extra_body=body, seed=2).choices[0].message.content
                for body in ({"structured_outputs": {"grammar": text}}, {"guided_grammar": text}, {"grammar": text})]
        self.assertEqual(len(set(same)), 1, same)
        streamed = self.client.chat.completions.create(model="gqa", messages=[{"role": "user", "content": "It is"}], max_tokens=60, seed=2, stream=True,
                                                       extra_body={"structured_outputs": {"grammar": 'root ::= "a " [a-z]{2,4} "."'}})
        self.assertRegex("".join(part.choices[0].delta.content or "" for part in streamed if part.choices), r"^a [a-z]{2,4}\.$")

    def test_earlier_fields_of_vllm_mean_the_same(self):
        pattern, wanted = r"[A-C]{2}\d", ["a cat", "a dog", "neither"]
        for older, value in (("regex", pattern), ("choice", wanted), ("json", Corner.model_json_schema()), ("json", json.dumps(Corner.model_json_schema()))):
            with self.subTest(older):
                texts = [self.ask(extra_body=body, seed=2).choices[0].message.content for body in ({f"guided_{older}": value}, {"structured_outputs": {older: value}})]
                self.assertEqual(texts[0], texts[1])
        continued = self.client.completions.create(model="gqa", prompt="It is", max_tokens=60, extra_body={"guided_regex": pattern})
        self.assertTrue(re.fullmatch(pattern, continued.choices[0].text), continued.choices[0].text)

    def test_other_answers_are_not_changed(self):
        """Greedy ones, with and without log-probabilities, answered alone and beside some that have a form."""
        others = [{"temperature": 0, "max_tokens": 40}, {"temperature": 0, "max_tokens": 40, "logprobs": True, "top_logprobs": 2}, {"temperature": 0.8, "seed": 4, "max_tokens": 40}]
        alone = [self.ask(**fields).choices[0].message.content for fields in others]
        with concurrent.futures.ThreadPoolExecutor(8) as clients:
            formed = [clients.submit(self.ask, response_format=form(Shape), seed=seed) for seed in range(4)]
            beside = [clients.submit(self.ask, **fields) for fields in others]
            self.assertEqual([one.result().choices[0].message.content for one in beside], alone)
            for one in formed:
                Shape.model_validate_json(one.result().choices[0].message.content)

    def test_log_probabilities_are_the_models_own(self):
        tokens = self.ask(response_format=form(Corner), logprobs=True, temperature=0).choices[0].logprobs.content
        self.assertEqual("".join(token.token for token in tokens)[:1], "{")
        self.assertLess(min(token.logprob for token in tokens), -1)

    def test_what_cannot_be_kept_is_refused(self):
        cases = [("response_format: the schema's properties.n: pattern, character 1: such an escape is not supported",
                  {"type": "object", "properties": {"n": {"type": "string", "pattern": r"\bA"}}}),
                 ("the schema refers to itself", {"$ref": "#"}), ("response_format: the schema: type: expected object", {"type": "text"})]
        for message, schema in cases:
            with self.subTest(message), self.assertRaisesRegex(openai.BadRequestError, message.replace("$", r"\$")):
                self.ask(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
        for message, fields in [("response_format: expected", {"response_format": {"type": "grammar"}}), ("response_format: expected", {"response_format": {"type": "json_schema"}}),
                                ("structured_outputs: the JSON is nested", {"extra_body": {"structured_outputs": {"json": '{"const": ' + "[" * 200000 + "]" * 200000 + "}"}}}),
                                ("structured_outputs: expected", {"extra_body": {"structured_outputs": {"gbnf": "root ::= \"a\""}}}),
                                ("structured_outputs: expected a grammar in GBNF", {"extra_body": {"structured_outputs": {"grammar": ["a"]}}}),
                                ("structured_outputs: the grammar, line 2, column 6: there is no rule 'b'", {"extra_body": {"structured_outputs": {"grammar": "root ::= a\na ::=b"}}}),
                                ("grammar: the grammar, line 1, column 5: expected ::=", {"extra_body": {"grammar": "root: \"a\""}}),
                                ("guided_grammar: the grammar, line 1, column 1: the rule 'root' calls itself", {"extra_body": {"guided_grammar": "root ::= root \"a\" | \"b\""}}),
                                ("grammar: it does not go with structured_outputs", {"extra_body": {"structured_outputs": {"regex": "a"}, "grammar": "root ::= \"a\""}}),
                                ("expected a choice of texts", {"extra_body": {"structured_outputs": {"choice": [""]}}}),
                                ("structured_outputs: pattern, character 4: expected a \\) that ends the group", {"extra_body": {"structured_outputs": {"regex": "é(a"}}}),
                                ("guided_regex: pattern, character 2: of groups, those that look around or have names are not supported", {"extra_body": {"guided_regex": "(?=a)b"}}),
                                ("guided_regex: the form is too large", {"extra_body": {"guided_regex": "(((a{1000}){1000}){1000})+"}}), ("guided_regex: expected a regular expression", {"extra_body": {"guided_regex": ["a"]}}),
                                ("guided_choice: expected a choice", {"extra_body": {"guided_choice": "a"}}), ("guided_choice: expected a choice", {"extra_body": {"guided_choice": []}}), ("guided_json: the schema: type: expected", {"extra_body": {"guided_json": {"type": "text"}}}),
                                ("guided_choice: it does not go with structured_outputs", {"extra_body": {"structured_outputs": {"regex": "a"}, "guided_choice": ["a"]}}),
                                ("ebnf: this server does not support it", {"extra_body": {"ebnf": "root ::= \"a\""}}),
                                ("does not go with response_format", {"response_format": {"type": "json_object"}, "extra_body": {"structured_outputs": {"choice": ["a"]}}})]:
            with self.subTest(message), self.assertRaisesRegex(openai.BadRequestError, message):
                self.ask(**fields)

    def test_end_tokens_that_the_model_does_not_have(self):
        config = folder / "gqa" / "decoder" / "generation_config.json"
        before = config.read_text()
        try:
            config.write_text(json.dumps(json.loads(before) | {"eos_token_id": [-1, 1 << 40]}))
            self.assertEqual(len(generate("--regex", "[a-z]{3}")["text"]), 3)
            with Server("--image-size", 28) as server:
                request = {"messages": [user("Hi")], "temperature": 0, "max_tokens": 9}
                for fields, words in (({"min_tokens": 2}, ".*"), ({"structured_outputs": {"regex": "[a-z]{3}"}}, "[a-z]{3}")):
                    status, text, _ = server.send("/v1/chat/completions", request | fields)
                    self.assertEqual(status, 200, text)
                    self.assertRegex(json.loads(text)["choices"][0]["message"]["content"], f"(?s)^{words}$")
        finally:
            config.write_text(before)

    def test_generate_has_the_same_form(self):
        (folder / "schema.json").write_text(json.dumps(Corner.model_json_schema()))
        answer = generate()
        self.assertTrue(answer["ended"])
        self.assertEqual(answer["text"], self.ask(response_format=form(Corner), temperature=0).choices[0].message.content)
        self.assertEqual(generate("--speculate", 3, "--json-schema", folder / "schema.json")["text"], answer["text"])
        (folder / "schema.json").write_text('{"type": "array", "uniqueItems": true}')
        self.assertIn("schema.json: the schema: 'uniqueItems' is not supported here", generate(code=2))
        pattern = r"[A-C]{2}: \d{1,3}|none"
        answer = generate("--regex", pattern, "--temperature", 1, "--seed", 5)
        self.assertTrue(answer["ended"] and re.fullmatch(pattern, answer["text"]), answer)
        self.assertEqual(generate("--regex", pattern)["text"], self.ask(extra_body={"structured_outputs": {"regex": pattern}}, temperature=0).choices[0].message.content)
        (folder / "form.gbnf").write_text(GRAMMARS["brackets"][0])
        answer = generate("--grammar", folder / "form.gbnf", "--temperature", 1, "--seed", 5)
        self.assertTrue(answer["ended"] and GRAMMARS["brackets"][1](answer["text"]), answer)
        (folder / "wrong.gbnf").write_text("root ::= [a-z\n")
        for words, options in (("wrong.gbnf: the grammar, line 1, column 10: the class does not end", ["--grammar", folder / "wrong.gbnf"]),
                               ("--grammar and --regex are mutually exclusive", ["--regex", "a", "--grammar", folder / "form.gbnf"])):
            self.assertIn(words, generate(*options, code=2))
        wanted = ["the cat", "a dog"]
        self.assertEqual(generate("--choice", wanted[0], "--choice", wanted[1])["text"], self.ask(extra_body={"structured_outputs": {"choice": wanted}}, temperature=0).choices[0].message.content)
        for words, options in (("--regex: pattern, character 2: it is not complete", ["--regex", "\\"]), ("--regex: expected a text", ["--regex", ""]),
                               ("--regex and --choice are mutually exclusive", ["--choice", "a", "--regex", "a"]), ("--choice and --ignore-eos are", ["--choice", "a", "--ignore-eos"])):
            self.assertIn(words, generate(*options, code=2))


if __name__ == "__main__":
    unittest.main()
