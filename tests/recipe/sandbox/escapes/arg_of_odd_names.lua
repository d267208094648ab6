local fvlm = require "fvlm"
assert(fvlm.arg("..", 1) == 1 and fvlm.arg("\0", "x") == "x" and fvlm.arg("") == nil)
assert(not pcall(fvlm.arg) and not pcall(fvlm.arg, {}) and not pcall(fvlm.arg, "x", print))
return "contained"
