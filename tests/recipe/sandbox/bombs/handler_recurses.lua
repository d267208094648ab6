-- expect: (C stack overflow|stack overflow|more than 5000000 instructions)
local function handler(e) error(e) end
while true do xpcall(error, handler, "x") end
