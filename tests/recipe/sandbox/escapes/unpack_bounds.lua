for _, range in ipairs { { 1, 1e7 }, { math.mininteger, math.maxinteger }, { 0, math.maxinteger }, { math.mininteger, 0 }, { 1, 2 ^ 31 }, { -1e9, 1e9 } } do
  assert(not pcall(table.unpack, {}, math.tointeger(range[1]), math.tointeger(range[2])))
end
assert(select("#", table.unpack({}, math.maxinteger, math.maxinteger)) == 1)
return "contained"
