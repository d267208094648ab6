-- expect: more than 5000000 instructions
while true do coroutine.wrap(function() end)() end -- here
