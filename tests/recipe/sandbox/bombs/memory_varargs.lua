-- expect: (more than 16.0 MiB of memory|longer than|stack overflow)
-- seconds: 1
local function more(...) return more(1, 2, 3, 4, ...) end -- here
more()
