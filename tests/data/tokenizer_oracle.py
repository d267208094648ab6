"""tokenizer_oracle.py FAMILY FOLDER COUNT: trains a tokenizer, and encodes COUNT generated strings with the wheel.

Writes tokenizer.json, strings.bin (u32 length + bytes, not always UTF-8) and ids.bin (u32 count + u32 ids, u32 length +
bytes of the decoded text) into FOLDER. FAMILY: smollm2, gpt2, llama3, llama2, gemma, qwen2, qwen3_5, nanochat, tekken, deepseek3, deepseek_llm, or one with the
pre-tokenizer Metaspace: mistral, mistral_plain or metaspace."""
import json
import random
import struct
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

family, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
LLAMA3 = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN3_5 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"^\s\p{L}", r"^\s\p{L}\p{M}")
NANOCHAT = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"""
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK3 = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
             r'''[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'''
             .replace(r"\r\n", "\r\n")]
DEEPSEEK_LLM = ["[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅḀ-ἕ𐐀-𐑏𞤀-𞥃]+",
                "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+"]
SPLITS = {"deepseek3": DEEPSEEK3, "deepseek_llm": DEEPSEEK_LLM}  # one behind the other
PATTERNS = {"llama3": LLAMA3, "qwen2": QWEN2, "qwen3_5": QWEN3_5, "nanochat": NANOCHAT, "tekken": TEKKEN}
METASPACE = {"mistral": {"prepend_scheme": "first", "split": False}, "mistral_plain": {"prepend_scheme": "never", "split": False},
             "metaspace": {"prepend_scheme": "always", "split": True}}
SENTENCEPIECE = {"llama2", "gemma", *METASPACE}
COMPOSED = ("qwen2", "qwen3_5")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im|>", "<file_sep>"]
draw = random.Random(7)

WORDS = ("the a of red blue circle square moves left right Hello World it's we're THEY'LL don't I'd 'S 'ſ naïve café "
         "Straße привет мир 你好 世界 日本語 한국어 مرحبا שלום नमस्ते ไทย 😀 👩‍👩‍👧 𝒳 ½ ² Ⅷ ٣ 123 4567 0 3.14 a1b2 x_y foo(bar); "
         "return != == -> :: // # \\n __init__").split(" ")
SPACES = [" ", " ", " ", " ", "  ", "\n", "\n\n", "\t", "\r\n", " \n", "\n ", "\u00a0", "\u2003", "\u3000", "   \t"]
LOOKALIKES = SPECIAL + ["<|im_start", "<|im_end|", "|im_end|>", "<|im_start|><|im_end|>", "< |im_end|>", "<|im_", "<|IM_END|>"]


def any_character():
    kind = draw.random()
    if family in COMPOSED and kind < 0.25: # what NFC composes, decomposes and reorders
        return chr(draw.choice([draw.randrange(0x300, 0x370), draw.randrange(0x41, 0x7B), draw.randrange(0x1100, 0x1200),
                                draw.randrange(0xAC00, 0xD7A4), draw.randrange(0xF900, 0xFB50), 0x344, 0x958, 0x2126,
                                draw.randrange(0x900, 0xE00), draw.randrange(0x1E00, 0x2000), 0x1D15E, 0x1D165]))
    if family == "qwen3_5" and kind < 0.6:  # letters, marks of all three kinds, digits, punctuation and white space, side by side
        return draw.choice("az\u4f60\u0301\u0903\u20dd\ufe0f\u200d\U0001f600\u094d\u0915\u0e48'.,! \n\r1\u00bd")
    if family == "tekken" and kind < 0.8:  # capitals, small letters, letters without a case, marks and slashes, side by side
        return draw.choice("Az\u01c5\u00aa\u0301/\n1 .")
    if family in SPLITS and kind < 0.7:  # what is of each class, and of none
        return draw.choice("Az7\u00bd\u00e9\u01c5\u0301\u0416\u4f60\u9fa6\u3042\u30ab\uac00'.,$\u20ac\uff01\u3002\u2019\u2603\u200d\x01\ue000 \u3000\u00a0\t\n\r")
    if kind < 0.3:
        return chr(draw.randrange(0x20, 0x7F))
    if kind < 0.5:
        return chr(draw.randrange(0x80, 0x3000))
    while True:
        point = draw.randrange(0x110000)
        if not 0xD800 <= point < 0xE000:
            return chr(point)


def string():
    kind = draw.random()
    if kind < 0.45:
        return "".join(draw.choice(WORDS) + draw.choice(SPACES) for _ in range(draw.randrange(1, 20))).encode()
    if kind < 0.70:
        return "".join(any_character() for _ in range(draw.randrange(0, 24))).encode()
    if kind < 0.80:
        return "".join(draw.choice(WORDS + SPACES + LOOKALIKES) for _ in range(draw.randrange(1, 12))).encode()
    if kind < 0.85:
        return (draw.choice("a \n1!é你😀") * draw.randrange(1, 300)).encode()
    if kind < 0.95:
        return bytes(draw.randrange(256) for _ in range(draw.randrange(0, 24)))
    text = bytearray("".join(draw.choice(WORDS) + " " for _ in range(6)).encode())
    text[draw.randrange(len(text))] = draw.randrange(0x80, 0x100)
    return bytes(text)


tokenizer = Tokenizer(models.BPE(ignore_merges=family in ("llama3", "tekken"), byte_fallback=family == "nanochat"))
if family in COMPOSED:
    tokenizer.normalizer = normalizers.NFC()
if family in SENTENCEPIECE:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
if family == "llama2":
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
if family == "gemma":
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=family not in PATTERNS and family not in SPLITS)
first = {"smollm2": pre_tokenizers.Digits(individual_digits=True), "gpt2": None}.get(family)
if family in PATTERNS:
    first = pre_tokenizers.Split(Regex(PATTERNS[family]), "isolated")
steps = [first] if first else [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS.get(family, [])]
if family == "deepseek_llm":
    steps.append(pre_tokenizers.Digits(individual_digits=True))
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, byte_level]) if steps else byte_level
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
if family in SENTENCEPIECE:
    tokenizer.pre_tokenizer = (pre_tokenizers.Split("▁", "merged_with_next") if family in ("llama2", "gemma")  # for training alone
                               else pre_tokenizers.Metaspace("▁", METASPACE[family]["prepend_scheme"], False))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           *([] if family in ("mistral_plain", "gemma") else [decoders.Strip(" ", 1, 0)])])
    alphabet = ["▁"]
trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False,
                              **({"limit_alphabet": 200} if family in SENTENCEPIECE else {}),
                              special_tokens=[AddedToken(text, special=True) for text in SPECIAL])
words = tokenizer.pre_tokenizer
if family in ("qwen3_5", "tekken", *SPLITS):
    tokenizer.pre_tokenizer = byte_level  # so that there are tokens which the pattern has to keep apart
tokenizer.train_from_iterator([string().decode("utf-8", "replace") for _ in range(4000)], trainer)
tokenizer.pre_tokenizer = words
if family in SENTENCEPIECE:
    written = json.loads(tokenizer.to_str())
    gemma = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    written["pre_tokenizer"] = ({"llama2": None, "gemma": gemma}[family] if family not in METASPACE
                                else written["pre_tokenizer"] | METASPACE[family])
    vocabulary = written["model"]["vocab"]
    for text in ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)]:
        vocabulary.setdefault(text, len(vocabulary))
    tokenizer = Tokenizer.from_str(json.dumps(written))
tokenizer.add_tokens([AddedToken("foo bar", normalized=False), AddedToken("zig", single_word=True, normalized=False),
                      AddedToken("<strip>", lstrip=True, rstrip=True, normalized=False), AddedToken("  ", normalized=False),
                      AddedToken("zfoo", normalized=True), AddedToken("<left>", lstrip=True, normalized=True),
                      AddedToken("<right>", rstrip=True, normalized=True), AddedToken("cafe\u0301", normalized=True)])
tokenizer.save(f"{folder}/tokenizer.json")
WORDS += ["zig", "zigzag", "foo", "bar", "foo bar", "<strip>", " <strip> ", "<strip>  ", "zfoo bar", "zfoo", " <left>", "<right> ", "café", "cafe\u0301"]

strings = [string() for _ in range(count)]
texts = [text.decode("utf-8", "replace") for text in strings]
with open(f"{folder}/strings.bin", "wb") as out, open(f"{folder}/ids.bin", "wb") as answers:
    for text, encoded in zip(strings, tokenizer.encode_batch(texts, add_special_tokens=False)):
        out.write(struct.pack("<I", len(text)) + text)
        decoded = tokenizer.decode(encoded.ids, skip_special_tokens=False).encode()
        answers.write(struct.pack(f"<I{len(encoded.ids)}I", len(encoded.ids), *encoded.ids))
        answers.write(struct.pack("<I", len(decoded)) + decoded)
