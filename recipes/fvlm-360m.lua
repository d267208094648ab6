-- fVLM-360M: SmolLM2-360M under DINOv2-small, or under DINOv2-base with --arg vision=dinov2-base.
-- No rates are published for this size; it takes those of the 135M.
local fvlm = require "fvlm"
local three = require "fvlm.three_stages"

return fvlm.recipe {
  name = "fvlm-360m",
  seed = 42,
  precision = "bf16",
  model = three.model(fvlm.arg("vision", "dinov2-small"), "SmolLM2-360M-Instruct"),

  three.align { lr = { connector = 1e-3, vision = 1e-5, decoder = 1e-5 }, to = 3e-5 },
  three.instruct { lr = 3e-5 },
  three.prefer { lr = 1e-6 },
}
