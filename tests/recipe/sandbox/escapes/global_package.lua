assert(package == nil and _G.package == nil and rawget(_G, "package") == nil)
return "contained"
