local made = require("fvlm").adamw { lr = 1 }
assert(getmetatable(made) == false)
assert(not pcall(setmetatable, made, {}) and not pcall(setmetatable, made, nil))
return "contained"
