-- expect: more than 5000000 instructions
local ok = pcall(coroutine.wrap(function() pcall(function() while true do end end) end)) -- here
return "escaped"
