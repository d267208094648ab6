-- expect: more than 16.0 MiB of memory
local t = {}
while true do t[#t + 1] = {} end -- here
