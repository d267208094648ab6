-- expect: more than 5000000 instructions
local f = coroutine.wrap(function() while true do coroutine.yield() end end)
while true do f() end
