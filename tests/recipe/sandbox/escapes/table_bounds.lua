assert(not pcall(table.move, {}, math.mininteger, math.maxinteger, 1))
assert(not pcall(table.move, {}, 1, math.maxinteger, 2))
assert(not pcall(table.insert, {}, math.maxinteger, 1) and not pcall(table.insert, {}, math.mininteger, 1))
assert(not pcall(table.remove, {}, math.maxinteger) and not pcall(table.remove, {}, math.mininteger))
assert(table.concat({ [math.maxinteger] = "x" }, ",", math.maxinteger, math.maxinteger) == "x")
assert(#table.pack(table.unpack({ [math.mininteger] = 1 }, math.mininteger, math.mininteger)) == 1)
return "contained"
