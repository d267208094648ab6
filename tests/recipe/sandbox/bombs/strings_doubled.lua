-- expect: more than 16.0 MiB of memory
local s = "x"
while true do s = s .. s end -- here
