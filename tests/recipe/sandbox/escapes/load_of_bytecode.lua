-- expect: attempt to call a nil value .global .load.
local chunk = "\27Lua\x54\0\x19\x93\r\n\x1a\n"
return load(chunk, "x", "b")() -- here
