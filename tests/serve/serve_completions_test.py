"""`/v1/completions` beside transformers, asked by the package `openai` and as EleutherAI's lm-evaluation-harness asks it (`local-completions`):
prompts of texts and of tokens, one and many, and the log-probabilities of what they say themselves.

usage: serve_completions_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE; exit 77 where the oracle's wheels or openai are missing."""
import json
import math
import os
import shutil
import sys
import unittest

try:
    import openai
except ImportError as error:
    print(f"Skipped\nthe package openai is not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

from against_oracle import folder, tool, torch
from running_server import Server, WithOpenAi, events

os.environ |= {"HF_HUB_OFFLINE": "1"}
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

TEXTS = ["The cat sat on the mat.", "1 + 1 = 2", "A dog, and another cat: größer!", "And so it ends"]


def setUpModule():
    global model, words
    tool("make-tiny", "model", "gqa", folder / "gqa", "--seed", "1")
    model = AutoModelForCausalLM.from_pretrained(folder / "gqa" / "decoder", dtype=torch.float32).eval()
    words = PreTrainedTokenizerFast(tokenizer_file=str(folder / "gqa" / "decoder" / "tokenizer.json"))


def ids_of(text):
    return words(text, add_special_tokens=False)["input_ids"]


def logprobs_of(ids):
    """What the model says of each token that follows: [tokens, vocabulary]."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().log_softmax(-1)


class LmEval:
    """What the harness sends for requests of a context and a continuation, in tokens, and what it reads from the answer."""
    @staticmethod
    def payload(prompts):
        return {"model": "gqa", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}

    @staticmethod
    def read(answer, context_lengths):
        found = []
        for choice, begin in zip(sorted(answer["choices"], key=lambda one: one["index"]), context_lengths):
            said, top = (choice["logprobs"][name][begin:-1] for name in ("token_logprobs", "top_logprobs"))
            found.append((sum(said), all(one == max(likely.values()) for one, likely in zip(said, top))))
        return found


class Completions(WithOpenAi, unittest.TestCase):
    options = ("--image-size", 28, "--queue", 64)

    def ask(self, prompt, **fields):
        return self.client.completions.create(**{"model": "gqa", "prompt": prompt, "max_tokens": 4, "temperature": 0} | fields)

    def refusal(self, prompt, **fields):
        with self.assertRaises(openai.BadRequestError) as raised:
            self.ask(prompt, **fields)
        return raised.exception.message

    def test_the_harness_scores_answers_as_transformers(self):
        contexts, answers = TEXTS, [" It purred.", " of course", " ok", ""]
        requests = [(ids_of(context), ids_of(answer)) for context in contexts for answer in answers[:3]]
        # What the model finds likeliest is the greedy answer.
        for context in contexts:
            ids = ids_of(context)
            with torch.no_grad():
                likeliest = model.generate(torch.tensor([ids]), max_new_tokens=3, do_sample=False, eos_token_id=10**6, pad_token_id=0)
            requests.append((ids, likeliest[0, len(ids):].tolist()))
        for at_once in (1, 5, len(requests)):
            found = []
            for first in range(0, len(requests), at_once):
                some = requests[first:first + at_once]
                status, text, _ = self.server.send("/v1/completions", LmEval.payload([context + answer for context, answer in some]))
                self.assertEqual(status, 200, text)
                found += LmEval.read(json.loads(text), [len(context) for context, _ in some])
            for (context, answer), (total, is_greedy) in zip(requests, found, strict=True):
                right = logprobs_of(context + answer)[len(context) - 1:-1]
                own = right.gather(1, torch.tensor(answer)[:, None])
                self.assertAlmostEqual(total, own.sum().item(), delta=2e-4)
                self.assertEqual(is_greedy, right.argmax(1).tolist() == answer)
        self.assertEqual({is_greedy for _, is_greedy in found}, {True, False})

    def test_an_echo_has_the_log_probabilities_of_the_prompt(self):
        for prompt in (TEXTS[2], ids_of(TEXTS[2])):
            choice = self.ask(prompt, echo=True, logprobs=3, max_tokens=3).choices[0]
            ids, shown = ids_of(TEXTS[2]), choice.logprobs
            self.assertTrue(choice.text.startswith(TEXTS[2]))
            self.assertEqual({len(shown.tokens), len(shown.token_logprobs), len(shown.top_logprobs), len(shown.text_offset)}, {len(ids) + 3})
            self.assertEqual((shown.token_logprobs[0], shown.top_logprobs[0], shown.text_offset[0]), (None, None, 0))
            right = logprobs_of(ids)
            for place, (token, logprob, top) in enumerate(zip(ids[1:], shown.token_logprobs[1:], shown.top_logprobs[1:])):
                self.assertAlmostEqual(logprob, right[place, token].item(), delta=1e-4)
                self.assertAlmostEqual(max(top.values()), right[place].max().item(), delta=1e-4)
                self.assertIn(len(top), (3, 4))
                self.assertLess(sum(map(math.exp, top.values())), 1.001)
            for token, offset in zip(shown.tokens, shown.text_offset):
                if not token.startswith("bytes:"):
                    self.assertEqual(choice.text[offset:offset + len(token)], token)
            continued = self.ask(prompt, logprobs=3, max_tokens=3).choices[0]
            self.assertEqual(TEXTS[2] + continued.text, choice.text)
            for one, other in zip(shown.token_logprobs[-3:], continued.logprobs.token_logprobs, strict=True):
                self.assertAlmostEqual(one, other, delta=1e-5)

    def test_an_echo_alone_generates_nothing(self):
        answer = self.ask(TEXTS[0], echo=True, logprobs=0, max_tokens=0)
        choice, ids = answer.choices[0], ids_of(TEXTS[0])
        self.assertEqual((choice.text, choice.finish_reason, len(choice.logprobs.tokens)), (TEXTS[0], "length", len(ids)))
        self.assertEqual((answer.usage.prompt_tokens, answer.usage.completion_tokens), (len(ids), 0))
        self.assertEqual(self.ask(TEXTS[0], echo=True, max_tokens=0).choices[0].text, TEXTS[0])
        self.assertIn("max_tokens: expected a whole number from 1", self.refusal(TEXTS[0], max_tokens=0))

    def test_the_last_token_of_an_ended_answer_has_its_log_probability(self):
        """So that the harness, which leaves out the one token that was generated, does not leave out one of the prompt."""
        shutil.copytree(folder / "gqa", folder / "ends")
        ids = ids_of(TEXTS[0])
        likeliest = logprobs_of(ids)[-1].argmax().item()
        (folder / "ends" / "decoder" / "generation_config.json").write_text(json.dumps({"eos_token_id": likeliest}))
        with Server("--image-size", 28, model="ends") as server:
            answer = json.loads(server.send("/v1/completions", LmEval.payload([ids]) | {"model": "ends"})[1])
        choice = answer["choices"][0]
        self.assertEqual((choice["finish_reason"], len(choice["logprobs"]["token_logprobs"])), ("stop", len(ids) + 1))
        self.assertEqual(answer["usage"]["completion_tokens"], 1)

    def test_lists_of_prompts_have_their_choices_in_order(self):
        alone = [self.ask(text, n=2, temperature=1, seed=3).choices for text in TEXTS]
        answer = self.ask(TEXTS, n=2, temperature=1, seed=3)
        self.assertEqual([choice.index for choice in answer.choices], list(range(8)))
        self.assertEqual([choice.text for choice in answer.choices[:2]], [choice.text for choice in alone[0]])
        self.assertEqual(len({choice.text for choice in self.ask(TEXTS[:1] * 3, temperature=1.5, seed=3, max_tokens=12).choices}), 3,
                         "the same prompt again draws its own")
        greedy = [self.ask(text).choices[0].text for text in TEXTS]
        for prompts in (TEXTS, [ids_of(text) for text in TEXTS], [TEXTS[0], ids_of(TEXTS[1]), *TEXTS[2:]]):
            whole = self.ask(prompts)
            self.assertEqual([choice.text for choice in whole.choices], greedy)
            self.assertEqual(whole.usage.prompt_tokens, sum(len(ids_of(text)) for text in TEXTS))
            self.assertEqual(whole.usage.completion_tokens, sum(self.ask(text).usage.completion_tokens for text in TEXTS))
            self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        self.assertEqual(self.ask(ids_of(TEXTS[1])).choices[0].text, greedy[1])

    def test_streams_have_the_same_pieces(self):
        fields = {"echo": True, "logprobs": 2, "n": 2, "temperature": 0.5, "seed": 2}
        whole = self.ask(TEXTS[:3], **fields)
        texts, logprobs, reasons = {}, {}, {}
        *parts, last = list(self.ask(TEXTS[:3], stream=True, stream_options={"include_usage": True}, **fields))
        for part in parts:
            choice, = part.choices
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            logprobs.setdefault(choice.index, []).extend(choice.logprobs.token_logprobs if choice.logprobs else [])
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
        self.assertEqual((last.usage.prompt_tokens, last.usage.completion_tokens), (whole.usage.prompt_tokens, whole.usage.completion_tokens))
        for choice in whole.choices:
            self.assertEqual((texts[choice.index], reasons[choice.index]), (choice.text, choice.finish_reason))
            for one, other in zip(logprobs[choice.index], choice.logprobs.token_logprobs, strict=True):
                self.assertEqual(one is None, other is None)
                self.assertAlmostEqual(one or 0, other or 0, delta=1e-5)

    def test_long_prompts_are_scored_in_several_passes(self):
        text = " ".join(TEXTS * 7)
        with Server("--image-size", 28, "--prefill-rows", 37) as server:
            ids = ids_of(text)
            status, body, _ = server.send("/v1/completions", LmEval.payload([ids, ids[:50], ids]))
            self.assertEqual(status, 200, body)
            right = logprobs_of(ids)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
            for choice, length in zip(json.loads(body)["choices"], (len(ids), 50, len(ids)), strict=True):
                for one, other in zip(choice["logprobs"]["token_logprobs"][1:length], right[:length - 1], strict=True):
                    self.assertAlmostEqual(one, other, delta=1e-4)

    def test_prompts_that_are_none_are_refused(self):
        for prompt, words_of_it in (([], "expected a text"), ({"text": "x"}, "expected a text"), ([[]], "expected a text"), ([1, "a"], "expected tokens"),
                                    ([1, -1], "expected tokens"), ([1.5], "expected tokens"), ([[1], [2, None]], "expected tokens"),
                                    ([2**40], "expected tokens"), ([100_000], "is beyond the"), ([["a"]], "expected tokens"), ("", "prompt"),
                                    (["a", ""], "prompt"), (["a"] * 65, "at most 64 prompts"), (list(range(200)) * 50, "maximum context length")):
            with self.subTest(prompt=str(prompt)[:40]):
                self.assertIn(words_of_it, self.refusal(prompt))
        status, text, _ = self.server.send("/v1/completions", {"prompt": ["a", [10**6]], "stream": True, "temperature": 0})
        documents = events(text)[0] if status == 200 else [json.loads(text)]
        self.assertIn("is beyond the", str(documents[-1]["error"]["message"]))
        self.server.wait_for(requests_waiting=0, requests_running=0)
        self.assertEqual(self.ask(TEXTS[0]).choices[0].text, self.ask([TEXTS[0]]).choices[0].text)


if __name__ == "__main__":
    unittest.main()
