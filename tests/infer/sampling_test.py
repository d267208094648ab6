"""The distribution that tokens are drawn from beside transformers' logits processors, over random settings.

usage: sampling_test.py SAMPLING_PROBE; exit 77 where transformers is missing."""
import json
import random
import subprocess
import sys
import unittest
from pathlib import Path

probe = Path(sys.argv.pop(1)).resolve()
try:
    import torch
    from transformers import LogitsProcessorList
    from transformers.generation.logits_process import (MinPLogitsWarper, RepetitionPenaltyLogitsProcessor,
                                                        TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)
except ImportError as error:
    print(f"Skipped\nthe oracle's wheels are not there ({error}): ./scripts/setup --oracles\n")
    sys.exit(77)

torch.set_num_threads(1)
VOCABULARY = 60


def random_case(draw):
    settings = {"temperature": lambda: draw.choice([0.3, 0.7, 1.0, 1.6]), "top_k": lambda: draw.choice([1, 3, 20, 80]),
                "top_p": lambda: draw.choice([0.2, 0.6, 0.95]), "min_p": lambda: draw.choice([0.02, 0.1, 0.5]),
                "repetition_penalty": lambda: draw.choice([0.8, 1.2, 2.0]), "frequency_penalty": lambda: draw.choice([-1.5, 0.4, 2]),
                "presence_penalty": lambda: draw.choice([-0.7, 1]),
                "logit_bias": lambda: [[token, draw.choice([-100, -2.5, 3])] for token in draw.sample(range(VOCABULARY), 5)]}
    case = {name: value() for name, value in settings.items() if draw.random() < 0.6}
    case["logits"] = [draw.gauss(0, 2) for _ in range(VOCABULARY)]
    case["context"] = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 12))]
    case["answered"] = draw.randrange(len(case["context"]) + 1)  # of the context, which are its last ones
    return case


def theirs(case):
    """OpenAI's penalties are those of its documentation, and the others are transformers'."""
    processors = LogitsProcessorList()
    logits = torch.tensor([case["logits"]], dtype=torch.double)
    for token, bias in case.get("logit_bias", []):
        logits[0, token] += bias
    for name, kind in [("repetition_penalty", RepetitionPenaltyLogitsProcessor), ("temperature", TemperatureLogitsWarper),
                       ("top_k", TopKLogitsWarper), ("top_p", TopPLogitsWarper), ("min_p", MinPLogitsWarper)]:
        if name in case:
            processors.append(kind(case[name]))
        if name == "repetition_penalty":
            processors.append(lambda _, scores: scores - penalties_of(case))
    return processors(torch.tensor([case["context"]]), logits).softmax(-1)[0]


def penalties_of(case):
    answered = case["context"][len(case["context"]) - case["answered"]:]
    return torch.tensor([answered.count(token) * case.get("frequency_penalty", 0) + (token in answered) * case.get("presence_penalty", 0)
                         for token in range(VOCABULARY)], dtype=torch.double)


class Sampling(unittest.TestCase):
    def test_equals_transformers(self):
        draw = random.Random(5)
        cases = [random_case(draw) for _ in range(300)]
        lines = "".join(json.dumps(case) + "\n" for case in cases)
        printed = subprocess.run([probe], input=lines, stdout=subprocess.PIPE, text=True, check=True).stdout
        for case, line in zip(cases, printed.splitlines(), strict=True):
            drawn = json.loads(line)
            own = torch.zeros(VOCABULARY, dtype=torch.double)
            own[drawn["tokens"]] = torch.tensor(drawn["probabilities"], dtype=torch.double)
            settings = {name: value for name, value in case.items() if name not in ("logits", "context")}
            self.assertLess((own - theirs(case)).abs().max().item(), 1e-9, settings)


if __name__ == "__main__":
    unittest.main()
