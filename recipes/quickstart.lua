-- Quickstart: a tiny fVLM, from nothing, on two CPU cores. Coloured shapes move over four frames; it learns to describe
-- them, to answer questions about them, and to prefer the right answer.
--
--   make-shapes --out data/shapes
--   fvlm-engine train recipes/quickstart.lua
local fvlm = require "fvlm"

local shapes = fvlm.arg("data", "data/shapes") -- make-shapes makes them
local frames, text_tokens = 4, 64

local function mix(source)
  source.max_frames = frames
  source.max_text_tokens = text_tokens
  source.system = "" -- a tiny decoder has no tokens to spare
  return fvlm.mix(source)
end

local function stage(name, described)
  described.mode = "refined" -- queries from fine visual tokens, as in use
  described.optimizer = fvlm.adamw { lr = described.lr, weight_decay = 0.01 }
  described.lr = nil
  described.schedule = fvlm.cosine { to_share = 0.1, warmup = 0.03 }
  described.batch = 32
  described.packing = { frames = 32 * frames, tokens = 2048, segments = 32 }
  return fvlm.stage(name, described)
end

return fvlm.recipe {
  name = "quickstart",
  precision = "fp32",
  model = fvlm.model {
    image_size = 32,
    vision = fvlm.dinov2 { width = 64, layers = 2, heads = 4, patch_size = 8 },
    decoder = fvlm.llama { width = 64, layers = 2, heads = 4, mlp = 128, max_positions = 512, tokenizer = shapes .. "/tokenizer" },
    connector = { query_dim = 64 },
  },
  checkpoint = { every = 500, keep_last = 2 },
  guard = { spike_factor = 6 }, -- what is learnt so well has a mean near 0, and single steps several times as much

  stage("align", {
    data = mix { { shapes .. "/captions/*.tar" }, { text = shapes .. "/text/*.tar" }, text_ratio = 0.05 },
    objective = fvlm.next_token { on = "all" },
    lr = 2e-3,
    samples = 104000,
  }),
  stage("instruct", {
    data = mix { { shapes .. "/questions/*.tar" } },
    objective = fvlm.next_token { on = "answer" },
    lr = 1e-3,
    samples = 72000,
    evaluation = {
      fvlm.evaluation "questions" {
        data = mix { { shapes .. "/heldout/questions/*.tar" } },
        measure = "choice",
        modes = { "autoregressive", "coarse_fine", "coarse_only" }, -- as in use; the others to compare
        entropy = true,
        show = 8,
      },
    },
  }),
  stage("prefer", {
    data = mix { { shapes .. "/pairs/*.tar" } },
    objective = fvlm.dpo { beta = 0.1 },
    lr = 1e-4,
    samples = 9600,
    evaluation = {
      fvlm.evaluation "pairs" { data = mix { { shapes .. "/heldout/pairs/*.tar" } }, measure = "preference", modes = "autoregressive" },
    },
  }),
}
