-- expect: more than 16.0 MiB of memory
local s = ("x"):rep(1e9 // 1) -- here
