-- expect: more than 16.0 MiB of memory
local t = {}
for i = 1, 1e9 do t[i] = coroutine.create(function() end) end -- here
