-- expect: (more than 5000000 instructions|more than 16.0 MiB of memory)
local s = ("x"):rep(100000)
return (s:gsub("x", s)) -- here
