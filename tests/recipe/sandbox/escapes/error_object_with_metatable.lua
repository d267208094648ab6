-- an error object's metamethods run like other code, under the same limits, and see nothing else
local seen
local object = setmetatable({}, { __tostring = function(...) seen = select("#", ...) return "text" end, __index = function(_, k) return k end })
local ok, e = pcall(error, object)
assert(not ok and rawequal(e, object) and tostring(e) == "text" and seen == 1)
return "contained"
