"""Stages of a tiny fVLM, step by step beside PyTorch: the same batches, losses within 1e-4 at every step.

usage: oracle_test.py FVLM_ENGINE FOLDER_OF_THE_ORACLE TRAIN_PROBE MAKE_SHAPES PLUGINS; exit 77 without the wheels."""
import contextlib
import copy
import json
import math
import subprocess
import sys
import tarfile
import unittest
from io import BytesIO

probe, make_shapes, plugins = (sys.argv.pop(3) for _ in range(3))
from against_oracle import folder, torch
from fvlm_oracle import Fvlm, cross_entropy, preference, read_batch, read_text
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

F, nn = torch.nn.functional, torch.nn
BATCH, RATE, WARMUP, END = 8, 2e-3, 0.1, 0.1
RECIPE = """
local fvlm = require "fvlm"
local data = fvlm.arg("data", "")
local function mix(source)
  source.max_frames, source.max_text_tokens, source.system = 3, 64, ""
  return fvlm.mix(source)
end
local function stage(name, described)
  described.optimizer = fvlm.adamw { lr = { connector = 4e-3, vision = 2e-3, decoder = 2e-3 }, weight_decay = 0.01,
                                     betas = { 0.9, 0.99 }, groups = { connector = { betas = { 0.7, 0.9 } }, vision = { eps = 1e-5 } } }
  described.schedule = fvlm.cosine { to_share = 0.1, warmup = 0.1 }
  described.batch, described.samples = 8, 8 * STEPS
  described.packing = { frames = 24, tokens = 2048, segments = 8 }
  return fvlm.stage(name, described)
end
local captions = mix { { data .. "/captions/*.tar" }, { text = data .. "/text/*.tar" }, text_ratio = 0.2 }
local questions, pairs = mix { { data .. "/questions/*.tar" } }, mix { { data .. "/pairs/*.tar" } }
return fvlm.recipe {
  name = "oracle", precision = "fp32", log_every = 1,
  model = fvlm.model {
    image_size = 32,
    vision = fvlm.dinov2 { width = 32, layers = 2, heads = 4, patch_size = 8 },
    decoder = fvlm.llama { width = 32, layers = 2, heads = 4, kv_heads = 2, mlp = 64, tokenizer = data .. "/tokenizer" },
    connector = { query_dim = 24 },
  },
  STAGES
}
"""
THREE_STAGES = """
  stage("align", { data = captions, objective = fvlm.next_token { on = "all" } }),
  stage("instruct", { data = questions,
                      objective = { fvlm.next_token { on = "answer" },
                                    fvlm.next_token { on = "answer", pass = "coarse", weight = 0.5 } } }),
  stage("prefer", { data = pairs, objective = fvlm.dpo { beta = 0.1 } }),
"""
WITH_A_TEACHER = """
  stage("align", { data = captions, objective = fvlm.next_token { on = "all" } }),
  stage("follow", { data = questions, from = "model",
                    objective = { fvlm.next_token { on = "answer", weight = 0.5 },
                                  fvlm.kl { teacher = data .. "/../other/run/align/step-000020", on = "answer",
                                            temperature = 2, weight = 1.5 } } }),
"""
# The losses of fvlm.dpo: their settings, and TRL's formulas of (mean) log-probabilities, a pair each.
PREFERENCES = {"sigmoid": {"beta": 0.3, "label_smoothing": 0.1}, "ipo": {"beta": 0.5}, "hinge": {"beta": 2.0},
               "kto": {"beta": 0.5}, "simpo": {"beta": 2.0, "gamma": 0.7, "label_smoothing": 0.05},
               "orpo": {"beta": 0.5}}
JUDGED = """
  stage("judged", { data = mix { { data .. "/../answers/*.tar" } },
                    objective = fvlm.kto { beta = 0.5, desirable_weight = 0.8, undesirable_weight = 1.3 } }),
"""
RETRIEVAL = """
  stage("found", { data = mix { { data .. "/../found/*.tar", fields = { query = "caption" } } },
                   objective = fvlm.contrastive { temperature = 0.05, symmetric = true, dimensions = 8 } }),
"""
QUANTISED = """
  quantization = { scheme = "int8" },
  stage("quantised", { data = captions, from = data .. "/../coarse", quantization_aware = true,
                       objective = fvlm.next_token { on = "all" } }),
"""


def share(step, steps):
    """Of the base rate: risen after the warm-up's steps, then half a cosine."""
    if step < WARMUP * steps:
        return (step + 1) / (WARMUP * steps)
    part = (step / steps - WARMUP) / (1 - WARMUP)
    return END + (1 - END) * (1 + math.cos(math.pi * part)) / 2


def preference_loss(loss, beta, ours, theirs, label_smoothing=0.0, gamma=0.5):
    """As TRL computes them (DPOTrainer; KTO, CPO and ORPO trainers); `ours`, `theirs`: [chosen, rejected]."""
    chosen, rejected = ours
    logits = (chosen - rejected) - (theirs[0] - theirs[1])
    if loss == "sigmoid":
        return -F.logsigmoid(beta * logits) * (1 - label_smoothing) - F.logsigmoid(-beta * logits) * label_smoothing
    if loss == "ipo":
        return (logits - 1 / (2 * beta)) ** 2
    if loss == "hinge":
        return torch.relu(1 - beta * logits)
    if loss == "kto":
        ratios = [own - other for own, other in zip(ours, theirs)]
        kl = [ratio.mean().clamp(min=0).detach() for ratio in ratios]
        return (1 - torch.sigmoid(beta * (ratios[0] - kl[1])) + 1 - torch.sigmoid(beta * (kl[0] - ratios[1]))) / 2
    if loss == "simpo":
        logits = (chosen - rejected) - gamma / beta
        return -F.logsigmoid(beta * logits) * (1 - label_smoothing) - F.logsigmoid(-beta * logits) * label_smoothing
    log_odds = (chosen - rejected) - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
    return -chosen - beta * F.logsigmoid(log_odds)


def kto_loss(beta, good, ours, theirs, desirable_weight, undesirable_weight):
    """As TRL's KTOTrainer computes it; `ours`, `theirs`: of each answer, and of another sample's behind the same prompt."""
    ratios, others = (own - other for own, other in zip(ours, theirs))
    kl = others.mean().clamp(min=0).detach()
    loss = torch.where(good, (1 - torch.sigmoid(beta * (ratios - kl))) * desirable_weight,
                       (1 - torch.sigmoid(beta * (kl - ratios))) * undesirable_weight).mean()
    return loss, kl


def ranking_loss(vectors, queries, positives, compared, temperature):
    """MultipleNegativesRankingLoss of sentence-transformers with scale = 1 / temperature, where `compared` says which texts each query sees, and
    MultipleNegativesSymmetricRankingLoss: the mean of both directions."""
    vectors = F.normalize(vectors, dim=-1)
    scores = (vectors[queries] @ vectors.T / temperature).masked_fill(~compared, -torch.inf)
    back = (vectors[positives] @ vectors[queries].T / temperature).masked_fill(~compared[:, positives].T, -torch.inf)
    return (F.cross_entropy(scores, positives) + F.cross_entropy(back, torch.arange(len(queries)))) / 2


def compared_texts(batch):
    """-> queries, positives, and which texts each query is compared with: equal pictures and equal queries are no wrong finds."""
    roles, counts, lengths = batch["roles"], batch["frame_counts"].tolist(), batch["text_lengths"].tolist()
    texts, frames = batch["input_ids"].split(lengths), batch["frames"].split(counts)
    content = [(tuple(text.tolist()), shown.numpy().tobytes()) for text, shown in zip(texts, frames)]
    queries = (roles == 1).nonzero().squeeze(1)
    right = {(content[query], content[query + 1]) for query in queries}
    compared = torch.zeros(len(queries), len(roles), dtype=torch.bool)
    for i, query in enumerate(queries):
        for text, role in enumerate(roles):
            compared[i, text] = text == query + 1 or (role != 1 and (content[query], content[text]) not in right)
    return queries, queries + 1, compared


class StraightThrough(torch.autograd.Function):
    """int8, a scale for each output feature."""

    @staticmethod
    def forward(ctx, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return torch.where(scale == 0, 0.0, (weight / scale).round().clamp(-127, 127)) * scale

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def quantised(model):
    """Linear layers of connector and decoder; the head stays."""
    return [(name, module) for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and not name.startswith("vision.") and name != "decoder.lm_head"]


def answer_logits(model, batch):
    """Of the labels: logits and targets."""
    ids, mask, lengths = read_text(batch)
    counts = batch["frame_counts"].tolist()
    hidden = model.text_hidden(model.visual(batch["frames"], counts, "coarse_fine")[1], counts, ids, lengths)
    sizes, is_label = torch.tensor(lengths), mask != 0
    is_label[sizes.cumsum(0) - sizes] = False
    label = is_label.nonzero().squeeze(1)
    return model.decoder.lm_head(hidden[label - 1]), ids[label]


def following(model, teacher, batch, temperature):
    """-> cross-entropy of the labels, divergence from the teacher's softened distributions."""
    logits, targets = answer_logits(model, batch)
    with torch.no_grad():
        theirs = F.log_softmax(answer_logits(teacher, batch)[0] / temperature, -1)
    ours = F.log_softmax(logits / temperature, -1)
    divergence = F.kl_div(ours, theirs, log_target=True, reduction="batchmean") * temperature**2
    return F.cross_entropy(logits, targets), divergence


def label_counts(batch, side):
    """Of each text."""
    ids, mask, lengths = read_text(batch, side)
    is_label = mask != 0
    is_label[torch.tensor(lengths).cumsum(0) - torch.tensor(lengths)] = False
    return torch.stack([part.sum() for part in is_label.split(lengths)])


def unseen(batch, reads):
    """What causal attention of PyTorch's multiplies with keys that are masked, in one pass forward."""
    counts = batch["frame_counts"].tolist()
    texts = [batch[name].tolist() for name in batch if name.endswith("text_lengths")]
    sequences = [frames + length for lengths in texts for frames, length in zip(counts, lengths)]
    pairs = sum(n * (n - 1) / 2 for n in counts) + reads * sum(n * (n - 1) / 2 for n in sequences)
    return pairs * 4 * 32 * 2  # two layers of width 32


class Stages(unittest.TestCase):
    def compare_flops(self, model, stage, out, loss_of, reads=1, passes=3):
        """Of the first step, with PyTorch's own count. `reads` of the text; `passes`: forward, and two backward."""
        line, batch = self.lines[stage][0], read_batch(out / "batches" / f"{stage}-000.safetensors")
        counted = FlopCounterMode(display=False)
        counted.mod_tracker = contextlib.nullcontext()  # nobody asks for it by modules
        counted.mod_tracker.parents = {"Global"}
        with sdpa_kernel(SDPBackend.MATH), counted:
            loss_of(batch, line).backward()
        model.zero_grad(set_to_none=True)
        ours = line["flops_per_second"] * sum(value for name, value in line.items() if name.startswith("time."))
        theirs = counted.get_total_flops() - unseen(batch, reads) * passes
        print(f"{stage}: {ours:.0f} floating-point operations, PyTorch {theirs:.0f}")
        self.assertLess(abs(ours / theirs - 1), 0.01, stage)

    def trained(self, name, stages, steps):
        """-> the folder of a run of ours."""
        data, out = folder / "data", folder / name
        (folder / f"{name}.lua").write_text(RECIPE.replace("STAGES", stages).replace("STEPS", str(steps)))
        subprocess.run([make_shapes, "--out", str(data), "--frames", "3", "--samples",
                        "captions=400,text=100,questions=400,pairs=400"], check=True, capture_output=True)
        done = subprocess.run([probe, str(folder / f"{name}.lua"), str(data), str(out), plugins],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [json.loads(line) for line in (out / "run" / "metrics.jsonl").read_text().splitlines()]
        self.lines = {stage: [line for line in lines if line["kind"] == "step" and line["stage"] == stage]
                      for stage in {line["stage"] for line in lines}}
        return out

    def follow(self, model, stage, out, steps, loss_of, norms=1e-3):
        """Trains the oracle's model on our batches. `loss_of(batch, line)`: its loss, and what else the line says."""
        self.assertEqual(len(self.lines[stage]), steps)
        fast = [p for n, p in model.named_parameters() if not n.startswith(("vision.", "decoder."))]
        vision, decoder = ([p for n, p in model.named_parameters() if n.startswith(part)] for part in ("vision.", "decoder."))
        optimizer = torch.optim.AdamW([{"params": fast, "base": 2 * RATE, "betas": (0.7, 0.9)},
                                       {"params": vision, "base": RATE, "eps": 1e-5}, {"params": decoder, "base": RATE}],
                                      lr=RATE, betas=(0.9, 0.99), weight_decay=0.01)
        worst = 0
        for step, line in enumerate(self.lines[stage]):
            for group in optimizer.param_groups:
                group["lr"] = group["base"] * share(step, steps)
            loss = loss_of(read_batch(out / "batches" / f"{stage}-{step:03}.safetensors"), line)
            worst = max(worst, abs(line["loss"] - loss.item()))
            self.assertLess(abs(line["loss"] - loss.item()), 1e-4, f"{stage}, step {step}")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            for parameter in model.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            self.assertLess(abs(line["gradient_norm"] / norm.item() - 1), norms, f"{stage}, step {step}")
            optimizer.step()
        print(f"{stage}: losses differ by at most {worst:.1e}")

    def test_three_stages(self):
        out = self.trained("three", THREE_STAGES, 50)
        model = Fvlm.load(out / "start")

        def predicted(batch, line, lambda_coarse=0.0):
            return cross_entropy(model, batch, "coarse_fine", lambda_coarse, logits=False)["loss"]

        def predicted_twice(batch, line):
            return predicted(batch, line, 0.5)

        self.compare_flops(model, "align", out, predicted)
        self.follow(model, "align", out, 50, predicted)
        self.compare_flops(model, "instruct", out, predicted_twice, reads=2)
        self.follow(model, "instruct", out, 50, predicted_twice)
        reference = copy.deepcopy(model)

        def preferred(batch, line):
            made = preference(model, reference, batch, "coarse_fine", 0.1, logits=False)
            self.assertAlmostEqual(line["reward_margin"], made["margin"].item(), delta=1e-4)
            return made["loss"]

        self.compare_flops(model, "prefer", out, preferred, passes=4)  # and the reference's forward
        self.follow(model, "prefer", out, 50, preferred)

    def test_a_teacher(self):
        out = self.trained("other", WITH_A_TEACHER, 20)
        teacher = Fvlm.load(out / "run" / "align" / "step-000020")
        student = Fvlm.load(out / "start")

        def followed(batch, line):
            entropy, divergence = following(student, teacher, batch, 2.0)
            self.assertAlmostEqual(line["term.next_token"], entropy.item(), delta=1e-4)
            self.assertAlmostEqual(line["term.kl"], divergence.item(), delta=1e-4)
            return 0.5 * entropy + 1.5 * divergence

        self.follow(student, "follow", out, 20, followed)
        first, last = (self.lines["follow"][i]["term.kl"] for i in (0, -1))
        self.assertLess(last, 0.9 * first, "it comes nearer to its teacher")

    def test_preference_losses(self):
        def described(loss, settings):
            words = ", ".join(f"{name} = {value}" for name, value in settings.items())
            return (f'stage("{loss}", {{ data = pairs, from = "model", '
                    f'objective = fvlm.dpo {{ loss = "{loss}", {words} }} }}),')

        out = self.trained("preferences", "\n".join(described(*each) for each in PREFERENCES.items()), 20)
        for loss, settings in PREFERENCES.items():
            model = Fvlm.load(out / "start")
            reference = copy.deepcopy(model)

            def followed(batch, line):
                made = preference(model, reference, batch, "coarse_fine", 1.0, logits=False)
                ours = [made[f"{side}_log_probs"] for side in ("chosen", "rejected")]
                theirs = [made[f"reference_{side}_log_probs"] for side in ("chosen", "rejected")]
                if loss in ("ipo", "simpo", "orpo"):
                    counts = [label_counts(batch, side) for side in ("chosen_", "rejected_")]
                    ours, theirs = ([each / count for each, count in zip(of, counts)] for of in (ours, theirs))
                if loss in ("simpo", "orpo"):
                    theirs = [torch.zeros_like(each) for each in theirs]
                rewards = [settings["beta"] * (own - other) for own, other in zip(ours, theirs)]
                self.assertAlmostEqual(line["reward_margin"], (rewards[0] - rewards[1]).mean().item(), delta=1e-4)
                return preference_loss(loss, ours=ours, theirs=theirs, **settings).mean()

            self.follow(model, loss, out, 20, followed)

    def judge(self, tar):
        """Writes the pairs of `tar` as judged answers: the rejected one of every fourth pair, of others the chosen one."""
        answers = {}
        with tarfile.open(tar) as pairs, tarfile.open(folder / "answers" / tar.name, "w") as judged:
            for member in pairs:
                content = pairs.extractfile(member).read()
                if member.name.endswith(".json"):
                    pair = json.loads(content)
                    good = len(answers) % 4 > 0
                    said = pair["chosen_assistant" if good else "rejected_assistant"]
                    answers[member.name] = said
                    content = json.dumps({"user": pair["user"], "assistant": said, "label": good}).encode()
                member.size = len(content)
                judged.addfile(member, BytesIO(content))

    def test_judged_answers(self):
        subprocess.run([make_shapes, "--out", str(folder / "paired"), "--frames", "3", "--samples", "pairs=400"], check=True, capture_output=True)
        (folder / "answers").mkdir()
        for tar in sorted((folder / "paired/pairs").glob("*.tar")):
            self.judge(tar)
        out = self.trained("judged", JUDGED, 20)
        model = Fvlm.load(out / "start")
        reference = copy.deepcopy(model)
        seen = []

        def followed(batch, line):
            made = preference(model, reference, batch, "coarse_fine", 1.0, logits=False)
            ours, theirs = ([made[f"{kind}{side}_log_probs"] for side in ("chosen", "rejected")] for kind in ("", "reference_"))
            good = batch["judgements"] != 0
            loss, kl = kto_loss(0.5, good, ours, theirs, 0.8, 1.3)
            rewards = 0.5 * (ours[0] - theirs[0])
            self.assertAlmostEqual(line["reward"], rewards.mean().item(), delta=1e-4)
            self.assertAlmostEqual(line["reward_margin"], torch.where(good, rewards, -rewards).mean().item(), delta=1e-4)
            self.assertAlmostEqual(line["desirable_share"], good.double().mean().item(), delta=1e-9)
            self.assertAlmostEqual(line["reference_kl"], kl.item(), delta=1e-4)
            seen.append(kl.item())
            return loss

        self.follow(model, "judged", out, 20, followed)
        self.assertGreater(max(seen), 0.01, "the estimate of the divergence was never put to the test")
        self.assertGreater(self.lines["judged"][-1]["reward_margin"], 0)

    def with_a_negative(self, tar):
        """Gives each caption of `tar` the one before it as its hard negative."""
        before = "Nothing at all."
        with tarfile.open(tar) as captions, tarfile.open(folder / "found" / tar.name, "w") as found:
            for member in captions:
                content = captions.extractfile(member).read()
                if member.name.endswith(".json"):
                    sample = json.loads(content)
                    content = json.dumps(sample | {"negative": before}).encode()
                    before = sample["caption"]
                member.size = len(content)
                found.addfile(member, BytesIO(content))

    def test_retrieval(self):
        subprocess.run([make_shapes, "--out", str(folder / "captions"), "--frames", "3", "--samples", "captions=400"], check=True, capture_output=True)
        (folder / "found").mkdir()
        for tar in sorted((folder / "captions/captions").glob("*.tar")):
            self.with_a_negative(tar)
        out = self.trained("retrieval", RETRIEVAL, 20)
        model = Fvlm.load(out / "start")

        def followed(batch, line):
            counts, lengths = batch["frame_counts"].tolist(), batch["text_lengths"].tolist()
            hidden = model.text_hidden(model.visual(batch["frames"], counts, "coarse_fine")[1], counts, batch["input_ids"], lengths)
            vectors = hidden[torch.tensor(lengths).cumsum(0) - 1]
            queries, positives, compared = compared_texts(batch)
            loss = sum(ranking_loss(part, queries, positives, compared, 0.05) for part in (vectors, vectors[:, :8]))
            with torch.no_grad():
                unit = F.normalize(vectors, dim=-1)
                cosines = unit[queries] @ unit.T
                own = cosines.gather(1, positives[:, None])
                others = compared.clone().scatter_(1, positives[:, None], False)
            self.assertEqual(line["negatives"], others.sum(1).double().mean().item())
            self.assertAlmostEqual(line["positive_similarity"], own.mean().item(), delta=1e-5)
            self.assertAlmostEqual(line["negative_similarity"], ((cosines * others).sum(1) / others.sum(1)).mean().item(), delta=1e-5)
            # Of two that are as near but for rounding, either is the nearest.
            least, most = ((~((cosines >= own + near) & others).any(1)).double().mean().item() for near in (-1e-6, 1e-6))
            self.assertTrue(least - 1e-9 <= line["retrieval_accuracy"] <= most + 1e-9, (least, line["retrieval_accuracy"], most))
            if line["step"] == 1:  # with the same weights
                self.assertAlmostEqual(line["loss"], loss.item(), delta=1e-5)
            return loss

        self.follow(model, "found", out, 20, followed)
        self.assertLess(self.lines["found"][-1]["loss"], self.lines["found"][0]["loss"])

    def test_quantised_weights(self):
        # A weight of each row far larger than the others: these then lie on few codes, and the losses tell.
        model = Fvlm.load(self.trained("first", THREE_STAGES.split("stage(\"instruct")[0], 20) / "run/align/step-000020")
        for _, module in quantised(model):
            module.weight.data[:, 0] *= 25
        model.save(folder / "coarse")
        out = self.trained("quantised", QUANTISED, 20)
        for _, module in quantised(model):
            module.forward = lambda x, module=module: F.linear(x, StraightThrough.apply(module.weight), module.bias)
        plain = Fvlm.load(folder / "coarse")

        def rounded(batch, line):
            if line["step"] == 1:  # the test tells one from the other
                unrounded = cross_entropy(plain, batch, "coarse_fine")["loss"].item()
                self.assertGreater(abs(line["loss"] - unrounded), 2e-4)
            return cross_entropy(model, batch, "coarse_fine")["loss"]

        # A weight that lies between two codes may take either: no sum is of the same bits.
        self.follow(model, "quantised", out, 20, rounded, norms=0.02)
        ours, theirs = (dict(each.named_parameters())
                        for each in (Fvlm.load(out / "run" / "quantised" / "step-000020"), model))
        for name, parameter in ours.items():
            distance = (parameter - theirs[name]).abs().max().item()
            self.assertLess(distance, 1e-3, f"the checkpoint does not hold the real {name}")


if __name__ == "__main__":
    unittest.main()
