-- Three stages of a tiny fVLM on data of make-shapes, in seconds on a CPU. Tests change it by replacing parts of its text.
local fvlm = require "fvlm"
local data = fvlm.arg("data", "")
local function mix(source)
  source.max_frames, source.max_text_tokens, source.system = 2, 48, ""
  return fvlm.mix(source)
end
local function stage(name, described)
  described.optimizer = described.optimizer or fvlm.adamw { lr = 2e-3, weight_decay = 0.01 }
  described.schedule = fvlm.cosine { to_share = 0.1, warmup = 0.1 }
  described.batch = 8
  described.packing = described.packing or { frames = 16, tokens = 512, segments = 8 }
  return fvlm.stage(name, described)
end
return fvlm.recipe {
  name = "small", precision = "fp32", log_every = 2,
  model = fvlm.model {
    image_size = 16,
    vision = fvlm.dinov2 { width = 16, layers = 2, heads = 2, patch_size = 8 },
    decoder = fvlm.llama { width = 16, layers = 2, heads = 2, mlp = 32, max_positions = 256, tokenizer = data .. "/tokenizer" },
    connector = { query_dim = 12 },
  },
  checkpoint = { every = 3, keep_last = 2 },
  stage("align", {
    data = mix { { data .. "/captions/*.tar" }, { text = data .. "/text/*.tar" }, text_ratio = 0.2 },
    objective = fvlm.next_token { on = "all" }, samples = 80,
  }),
  stage("instruct", {
    data = mix { { data .. "/questions/*.tar" } },
    objective = { fvlm.next_token { on = "answer" }, fvlm.next_token { on = "all", pass = "coarse", weight = 0.5 } },
    samples = 64,
    evaluation = { every = 4, fvlm.evaluation "questions" { data = mix { { data .. "/heldout/questions/*.tar" } }, measure = "choice" } },
  }),
  stage("prefer", {
    data = mix { { data .. "/pairs/*.tar" } }, objective = fvlm.dpo { beta = 0.1 }, samples = 48,
    evaluation = { fvlm.evaluation "pairs" { data = mix { { data .. "/heldout/pairs/*.tar" } }, measure = "preference" } },
  }),
}
