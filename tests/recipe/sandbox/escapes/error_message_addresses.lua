-- Behind the place of the error, whose folder may hold any letters.
local function tells_an_address(e)
  return tostring(e):gsub("^.-:%d+: ", ""):find("0x")
end
local _, e = pcall(function() local t = {} return t < {} end)
assert(not tells_an_address(e))
_, e = pcall(function() return {} .. "x" end)
assert(not tells_an_address(e))
_, e = pcall(error, {})
assert(not tells_an_address(e))
return "contained"
