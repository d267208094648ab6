"""/v1/embeddings of `fvlm-engine serve` beside transformers' last hidden states: texts, tokens, conversations, many at once, and what is refused.

usage: serve_embeddings_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels or openai are missing."""
import base64
import concurrent.futures
import json
import struct
import sys
import unittest

try:
    import openai
except ImportError as error:
    print(f"Skipped\nthe package openai is not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

from against_oracle import engine, folder, tool, torch
from running_server import Server, WithOpenAi, picture, user, with_image
from transformers import AutoModelForCausalLM

TEXTS = ["A cat sits by the window.", "Rain", "x" * 90, "größer, 日本"]


def setUpModule():
    global decoder
    tool("make-tiny", "model", "gqa", folder / "gqa", "--seed", "1")
    enclose(folder / "gqa" / "decoder" / "tokenizer.json")
    decoder = AutoModelForCausalLM.from_pretrained(folder / "gqa" / "decoder").eval().float()


def enclose(file):
    """A tokenizer that adds a token at a text's beginning and two at its end by itself."""
    document = json.loads(file.read_text())
    added = [token["content"] for token in document["added_tokens"]][:2]
    step = [{"SpecialToken": {"id": added[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": added[1], "type_id": 0}}, {"SpecialToken": {"id": added[1], "type_id": 0}}]
    ids = {token["content"]: token["id"] for token in document["added_tokens"]}
    document["post_processor"] = {"type": "TemplateProcessing", "single": step, "pair": step,
                                  "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in added}}
    file.write_text(json.dumps(document))


def last_state(tokens, normalize=True):
    with torch.no_grad():
        state = decoder.model(torch.tensor([tokens])).last_hidden_state[0, -1]
    return state / state.norm() if normalize else state


class Embeddings(WithOpenAi, unittest.TestCase):
    def post(self, expected=200, **request):
        status, body, _ = self.server.send("/v1/embeddings", request)
        self.assertEqual(status, expected, body)
        return json.loads(body)

    def tokens_of(self, text):
        return json.loads(self.server.send("/tokenize", {"prompt": text})[1])["tokens"]

    def enclosed(self, text):
        first, last = (json.loads((folder / "gqa" / "decoder" / "tokenizer.json").read_text())["added_tokens"][i]["id"] for i in (0, 1))
        return [first, *self.tokens_of(text), last, last]

    def assert_near(self, ours, right):
        self.assertLess((torch.tensor(ours) - right).abs().max().item(), 2e-5 * right.abs().max().item())

    def test_vectors_are_the_last_hidden_states_of_transformers(self):
        answer = self.client.embeddings.create(model="gqa", input=TEXTS)  # which asks for base64
        self.assertEqual([each.index for each in answer.data], list(range(len(TEXTS))))
        for text, each in zip(TEXTS, answer.data):
            self.assert_near(each.embedding, last_state(self.enclosed(text)))
        count = sum(len(self.enclosed(text)) for text in TEXTS)
        self.assertEqual((answer.object, answer.model, answer.usage.prompt_tokens, answer.usage.total_tokens), ("list", "gqa", count, count))

    def test_tokens_are_taken_as_they_are(self):
        tokens = self.tokens_of(TEXTS[0])
        for given in (tokens, [tokens], [tokens, [5]]):
            data = self.post(input=given)["data"]
            self.assert_near(data[0]["embedding"], last_state(tokens))
        self.assert_near(data[1]["embedding"], last_state([5]))

    def test_forms_of_a_vector(self):
        state = last_state(self.enclosed(TEXTS[0]), normalize=False)
        whole = self.post(input=TEXTS[0])["data"][0]
        self.assertEqual((whole["object"], len(whole["embedding"])), ("embedding", len(state)))
        self.assert_near(self.post(input=TEXTS[0], normalize=False)["data"][0]["embedding"], state)
        self.assert_near(self.post(input=TEXTS[0], dimensions=5)["data"][0]["embedding"], state[:5] / state[:5].norm())
        packed = base64.b64decode(self.post(input=TEXTS[0], encoding_format="base64")["data"][0]["embedding"])
        self.assertEqual(list(struct.unpack(f"<{len(state)}f", packed)), [struct.unpack("<f", struct.pack("<f", x))[0] for x in whole["embedding"]])

    def test_a_conversation_with_a_picture(self):
        vectors = [torch.tensor(self.post(messages=[message])["data"][0]["embedding"])
                   for message in (with_image("What is this?", picture()), with_image("What is this?", picture(step=70)), user("What is this?"))]
        for vector in vectors:
            self.assertAlmostEqual(vector.norm().item(), 1, places=5)
        for a, b in ((0, 1), (0, 2), (1, 2)):
            self.assertGreater((vectors[a] - vectors[b]).abs().max().item(), 1e-3)
        tokens = json.loads(self.server.send("/tokenize", {"messages": [user("What is this?")]})[1])["tokens"]
        self.assert_near(vectors[2].tolist(), last_state(tokens))

    def test_beside_answers_of_other_clients(self):
        alone = {text: self.post(input=text)["data"][0]["embedding"] for text in TEXTS}
        said = self.server.ask(user("Why?"), max_tokens=40)
        with concurrent.futures.ThreadPoolExecutor(16) as clients:
            chats = [clients.submit(self.server.ask, user("Why?"), max_tokens=40) for _ in range(8)]
            vectors = [(text, clients.submit(self.post, input=[text] * 3)) for text in TEXTS * 6]
            for text, answer in vectors:
                for each in answer.result()["data"]:
                    self.assertLess(max(abs(a - b) for a, b in zip(each["embedding"], alone[text])), 1e-5)
            self.assertEqual({chat.result() for chat in chats}, {said})

    def test_many_inputs_follow_each_other(self):
        inputs = [TEXTS[i % len(TEXTS)][:20] + str(i % 3) for i in range(1000)]  # as many as LangChain's OpenAIEmbeddings sends at a time
        alone = {text: self.post(input=text)["data"][0]["embedding"] for text in set(inputs)}
        def check(server, inputs):
            status, body, _ = server.send("/v1/embeddings", {"input": inputs})
            self.assertEqual(status, 200, body)
            document = json.loads(body)
            self.assertEqual([each["index"] for each in document["data"]], list(range(len(inputs))))
            for text, each in zip(inputs, document["data"]):
                self.assertLess(max(abs(a - b) for a, b in zip(each["embedding"], alone[text])), 1e-5)
            return document["usage"]["prompt_tokens"]
        whole = check(self.server, inputs)
        with Server("--image-size", 28, "--queue", 4) as small:
            self.assertEqual(check(small, inputs), whole)
            with concurrent.futures.ThreadPoolExecutor(2) as clients:
                for answer in [clients.submit(check, small, inputs[:200]) for _ in range(2)]:
                    answer.result()
            self.assertEqual(json.loads(small.send("/v1/embeddings", {"input": [*inputs[:50], "y" * 5000]})[1])["error"]["code"], "context_length_exceeded")
            small.wait_for(requests_waiting=0, requests_running=0)

    def test_what_is_refused_is_named(self):
        for request, word in (({}, "either an input or messages"), ({"input": []}, "expected a text"), ({"input": [[]]}, "expected a text"),
                              ({"input": [None]}, "expected a text"), ({"input": "a", "messages": [user("b")]}, "either an input or messages"),
                              ({"input": "a", "dimensions": 0}, "dimensions"), ({"input": "a", "dimensions": 10_000}, "dimensions"),
                              ({"input": "a", "encoding_format": "int8"}, "float or base64"), ({"input": [10 ** 6]}, "input: token 1000000"),
                              ({"input": ["a"] * 2049}, "at most 2048 inputs"), ({"input": "y" * 5000}, "maximum context length")):
            self.assertIn(word, self.post(400, **request)["error"]["message"])
        self.assertEqual(self.post(404, input="a", model="other")["error"]["param"], "model")
        status, body, _ = self.server.send("/v1/embeddings")
        self.assertEqual(status, 405, body)
        self.post(input="still here")


if __name__ == "__main__":
    unittest.main()
