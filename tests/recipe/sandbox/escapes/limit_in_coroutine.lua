-- expect: more than 5000000 instructions
local ok = coroutine.resume(coroutine.create(function() while true do end end)) -- here
return "escaped"
