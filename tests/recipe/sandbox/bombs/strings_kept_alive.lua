-- expect: more than 16.0 MiB of memory
local s = {}
for i = 1, 1e9 do s[i] = ("x"):rep(10000, tostring(i)) end -- here
