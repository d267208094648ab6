assert(debug == nil and _G.debug == nil and rawget(_G, "debug") == nil)
return "contained"
