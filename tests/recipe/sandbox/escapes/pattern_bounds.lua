for _, p in ipairs { "%", "[", "[^", "[%", "[a-", "%b", "%bx", "%f", "%fx", "(", ")", "(()", "%1", "(%1)", "%9", "[]", "[^]", ("("):rep(40), ("()"):rep(40) } do
  pcall(string.find, "abc", p) pcall(string.match, "", p) pcall(string.gsub, "abc", p, "%1%2%9")
  pcall(function() for a in ("abc"):gmatch(p) do end end)
end
assert(not pcall(string.gsub, "abc", "b", "%") and not pcall(string.gsub, "abc", "b", "%z"))
return "contained"
