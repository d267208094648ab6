local fvlm = require "fvlm"
table.sort(fvlm) -- nothing in it to be sorted
assert(type(fvlm.adamw) == "function")
return "contained"
