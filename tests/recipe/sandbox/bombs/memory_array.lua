-- expect: (more than 16.0 MiB of memory|more than 5000000 instructions)
local t = {}
for i = 1, 1e9 do t[i] = i end -- here
