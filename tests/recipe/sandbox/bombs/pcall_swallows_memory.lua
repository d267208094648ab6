-- expect: (more than 16.0 MiB of memory|more than 5000000 instructions)
local t = {}
while true do pcall(function() t[#t + 1] = ("x"):rep(100000) .. #t end) end
