-- LatentWire with frozen decoders: an encoder of bytes writes SQuAD's contexts and questions as 8 latents, of which
-- Llama 3.2 1B answers. The numbers are those of the public two-model recipe. The first tokens of an answer also follow
-- those of a teacher: the same Llama, which reads the context and the question as text. As it is frozen, that is done once,
-- before training; what it makes of SQuAD's training set has 1.4 GB in the run's folder.
--
--   fvlm-engine plan recipes/latentwire.lua --arg weights=/models --arg data=/data
--
-- With a second decoder, Qwen 2.5, both read the same latents, 24 that they share and 4 of their own. Its sets have a result
-- for each, and one for what both answer together:
--
--   fvlm-engine plan recipes/latentwire.lua --arg weights=/models --arg data=/data --arg second=Qwen2.5-1.5B-Instruct
--
-- The shards hold samples of {"context", "question", "answers"}. The sets "text" and "token_budget" are what the latents
-- are compared with: the decoder reads the whole source, or as many of its tokens as there are latents.
local fvlm = require "fvlm"

local weights = fvlm.arg("weights", "weights")
local data = fvlm.arg("data", "data")
local second = fvlm.arg("second", "")
local two = second ~= ""
local shared, private = two and 24 or 8, two and 4 or 0
local latents = shared + private -- decoder rows of a source
local decoders = two and { "decoder", "decoder2" } or "decoder"

local system = "You are a concise QA assistant. Use the context to answer with a short phrase only. Answer in English. "
  .. "Respond with the answer phrase only."
local chat = "<|start_header_id|>system<|end_header_id|>\n\n" .. system .. "<|eot_id|>"
  .. "<|start_header_id|>user<|end_header_id|>\n\n{source}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
local qwen_chat = "<|im_start|>system\n" .. system .. "<|im_end|>\n<|im_start|>user\n{source}<|im_end|>\n<|im_start|>assistant\n"

-- What Qwen reads otherwise: its own chat, and no token before a text.
local function of_second(more)
  return {
    decoder2 = {
      chat_template = "default",
      teacher_prompt = more.teacher_prompt and qwen_chat or nil,
      questions = {
        prompt = qwen_chat,
        anchor = "Answer: ",
        bos = "",
        eos = "<|im_end|>",
        max_answer_tokens = 24,
        max_source_tokens = more.max_source_tokens or nil,
      },
    },
  }
end

local function mix(source, max_text_tokens, more)
  more = more or {}
  return fvlm.mix {
    source,
    system = "",
    chat_template = "default",
    max_text_tokens = max_text_tokens,
    teacher_prompt = more.teacher_prompt or nil,
    decoders = two and of_second(more) or nil,
    questions = {
      source = "Context: {context}\nQuestion: {question}\n",
      prompt = chat,
      anchor = "Answer: ",
      bos = "<|begin_of_text|>",
      eos = "<|eot_id|>",
      max_answer_tokens = 24,
      max_source_tokens = more.max_source_tokens or nil,
    },
  }
end

local function held_out(name, described)
  return fvlm.evaluation(name) { data = described.data, measure = "answer", max_new_tokens = 12, modes = described.modes, show = 16 }
end

local squad = { data .. "/squad/validation/*.tar" }
local squad_as_text = { text = data .. "/squad/validation/*.tar" }

return fvlm.recipe {
  name = "latentwire",
  seed = 42,
  precision = "bf16",
  model = fvlm.model {
    vision = fvlm.bytes { max_bytes = 2048, width = 256, layers = 6, heads = 8, mlp = 1024 },
    decoder = weights .. "/Llama-3.2-1B-Instruct",
    decoders = two and { weights .. "/" .. second } or nil,
    connector = fvlm.byte_latents { latents = shared, private_latents = private, heads = 8, color = true },
  },

  fvlm.stage "latents" {
    freeze = decoders,
    data = mix({ data .. "/squad/train/*.tar" }, 1024, { teacher_prompt = chat }),
    objective = {
      fvlm.next_token { on = "answer" },
      fvlm.next_token { on = "answer", first = 1 },
      fvlm.next_token { on = "answer", first = 4, weight = 0.5 },
      fvlm.kl { reads = "teacher_prompt", first = 4, temperature = 1.5, cache_teacher = true },
      fvlm.manifold { weight = 1e-3 },
    },
    optimizer = fvlm.adamw { lr = 5e-5, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0.01, clip = 1 },
    schedule = fvlm.cosine { to_share = 0.02 },
    batch = 40 * 32,
    epochs = 24,
    packing = { frames = 40, tokens = 40 * 64, segments = 40 },
    evaluation = {
      every = 500,
      held_out("latents", { data = mix(squad, 64), modes = { "latents", "fp16", "int8", "int6", "int4" } }),
      held_out("text", { data = mix(squad_as_text, 1024), modes = "latents" }),
      held_out("token_budget", { data = mix(squad_as_text, 1024, { max_source_tokens = latents }), modes = "latents" }),
    },
  },
}
