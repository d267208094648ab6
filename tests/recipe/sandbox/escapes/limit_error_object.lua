-- expect: more than 5000000 instructions
-- what ends the evaluation is never handed to the author
local got
local ok, e = pcall(function() while true do end end) -- here
got = e
return "escaped"
