-- expect: more than 16.0 MiB of memory
local t = {}
for i = 1, 1e9 do t[i] = function() return i end end -- here
