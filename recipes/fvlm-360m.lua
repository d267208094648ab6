-- fVLM-360M: SmolLM2-360M with DINOv2-small, or with DINOv2-base by --arg vision=dinov2-base.
-- No learning rates are published for this size; it uses those of the 135M.
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
