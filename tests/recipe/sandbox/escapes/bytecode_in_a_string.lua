local s = "\27Lua\x54\0\x19\x93\r\n\x1a\n"
assert(load == nil and #s == 12)
return "contained"
