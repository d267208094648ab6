-- expect: (more than 5000000 instructions|more than 16.0 MiB of memory)
local s = "x"
while true do s = s:gsub(".", "%0%0") end -- here
