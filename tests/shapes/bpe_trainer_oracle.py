"""bpe_trainer_oracle.py FOLDER VOCABULARY: trains with the tokenizers wheel on FOLDER/texts.json and compares the
result with FOLDER/ours.json: the same tokens by id, the same merges. Writes the ids that the wheel encodes the texts to
with our file into ids.json."""
import json
import pathlib
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

folder, vocabulary = pathlib.Path(sys.argv[1]), int(sys.argv[2])
texts = json.loads((folder / "texts.json").read_text())
special = [AddedToken(text, special=True, normalized=False) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
wheel = Tokenizer(models.BPE())
wheel.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)])
wheel.decoder = decoders.ByteLevel()
wheel.train_from_iterator(texts, trainers.BpeTrainer(
    vocab_size=vocabulary, min_frequency=0, special_tokens=special, show_progress=False,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))

theirs, ours = json.loads(wheel.to_str()), json.loads((folder / "ours.json").read_text())
for part in ("vocab", "merges"):
    mine, other = ours["model"][part], theirs["model"][part]
    if mine == other:
        continue
    pairs = list(zip(sorted(mine.items(), key=lambda t: t[1]), sorted(other.items(), key=lambda t: t[1]))
                 if part == "vocab" else zip(mine, other))
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    sys.exit(f"{part}: {len(mine)} and the wheel's {len(other)}; entry {first} differs: {pairs[first:first + 1]}")
ours["model"] = theirs["model"] = None
if ours != theirs:
    sys.exit(f"the files differ: ours {ours}, the wheel's {theirs}")
loaded = Tokenizer.from_file(str(folder / "ours.json"))
(folder / "ids.json").write_text(json.dumps([e.ids for e in loaded.encode_batch(texts, add_special_tokens=False)]))
