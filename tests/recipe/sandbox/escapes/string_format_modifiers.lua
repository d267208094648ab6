for _, f in ipairs { "%n", "%ls", "%hhd", "%lld", "%*d", "%1$s", "%999d", "%.999f", "%I64d", "%zu", "%-+ #0123d" } do
  assert(not pcall(string.format, f, 1, 1, 1), f)
end
return "contained"
