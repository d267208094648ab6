local ok, e = pcall(table.concat, { {} })
assert(not ok and not e:find("0x"))
return "contained"
