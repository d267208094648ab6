-- expect: more than (16.0 MiB of memory|5000000 instructions)
local ok = pcall(function() local t = {} while true do t[#t + 1] = ("x"):rep(1000) .. #t end end) -- here
return "escaped"
