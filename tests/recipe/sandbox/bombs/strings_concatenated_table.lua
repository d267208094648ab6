-- expect: (more than 16.0 MiB of memory|more than 5000000 instructions)
local t = {}
for i = 1, 1000 do t[i] = ("x"):rep(1000) end
local s = table.concat(t)
for i = 1, 1000 do t[i] = s end
return table.concat(t) -- here
