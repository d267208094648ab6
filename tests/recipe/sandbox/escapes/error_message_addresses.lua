local _, e = pcall(function() local t = {} return t < {} end)
assert(not e:find("0x"))
_, e = pcall(function() return {} .. "x" end)
assert(not e:find("0x"))
_, e = pcall(error, {})
assert(not tostring(e):find("0x"))
return "contained"
