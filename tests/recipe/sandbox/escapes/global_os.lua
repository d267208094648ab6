assert(os == nil and _G.os == nil and rawget(_G, "os") == nil)
return "contained"
