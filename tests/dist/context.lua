-- Stages that ranks can share the sequences of, on data of make-shapes: text as documents, joined and each for itself, and
-- a tiny fVLM with frames, with texts alone among them, and with a second pass.
local fvlm = require "fvlm"
local data = fvlm.arg("data", "")
local function stage(name, described)
  described.optimizer = fvlm.adamw { lr = 1e-3, eps = 1e-5, weight_decay = 0.01 } -- less of rounding than 1e-8
  described.schedule = fvlm.cosine { to_share = 0.1, warmup = 0.1 }
  described.batch = 8
  return fvlm.stage(name, described)
end
local function documents(name)
  return stage(name, {
    freeze = { "vision", "connector" },
    data = fvlm.mix { { text = data .. "/documents/*.tar" }, documents = name, max_text_tokens = 60 },
    objective = fvlm.next_token { on = "all" }, packing = { tokens = 240 }, samples = 40,
  })
end
local function mix(source)
  source.max_frames, source.max_text_tokens, source.system = 2, 48, ""
  return fvlm.mix(source)
end
return fvlm.recipe {
  name = "context", precision = "fp32", log_every = 1,
  model = fvlm.model {
    image_size = 16,
    vision = fvlm.dinov2 { width = 16, layers = 2, heads = 2, patch_size = 8 },
    decoder = fvlm.llama { width = 32, layers = 2, heads = 4, kv_heads = 2, mlp = 32, max_positions = 256,
                           tokenizer = data .. "/tokenizer" },
    connector = { query_dim = 12 },
  },
  checkpoint = { every = 1, keep_last = 3 },
  documents("isolated"),
  documents("joined"),
  stage("align", {
    data = mix { { data .. "/captions/*.tar" }, { text = data .. "/text/*.tar" }, text_ratio = 0.2 },
    objective = fvlm.next_token { on = "all" }, packing = { frames = 16, tokens = 512, segments = 8 }, samples = 48,
  }),
  stage("instruct", {
    data = mix { { data .. "/questions/*.tar" } },
    objective = { fvlm.next_token { on = "answer" }, fvlm.next_token { on = "all", pass = "coarse", weight = 0.5 } },
    packing = { frames = 16, tokens = 512, segments = 8 }, activation_checkpointing = "all", samples = 48,
    evaluation = { every = 4, fvlm.evaluation "questions" { data = mix { { data .. "/heldout/questions/*.tar" } }, measure = "choice" } },
  }),
}
